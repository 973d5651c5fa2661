"""What objectives carry from step to step, and what of it a checkpoint of several ranks has."""

from types import SimpleNamespace

import numpy as np
import pytest

from erniecore.api.method import Batch, LossOutput, Objective
from erniecore.engine.training.build import build_objective
from erniecore.engine.training.state import TrainState, checkpoint_groups
from erniecore.errors import ConfigError


class Repeating(Objective):
    """Learns twice from the same rows, and says nothing of ranks."""

    repeats = 2

    def normalizers(self, batch: Batch):
        return {}

    def __call__(self, batch: Batch, totals) -> LossOutput:
        raise AssertionError

    def carried(self):
        return {"rows": np.arange(3)}


def built(size, objective):
    settings = SimpleNamespace(method=None, adapter=None, train=SimpleNamespace(loss_chunk=8))
    hook = SimpleNamespace(ernie_build_objective=lambda **given: objective)
    context = SimpleNamespace(
        settings=settings, reference="none", host=SimpleNamespace(hook=hook), plugins={}, names={"method": "twice"}
    )
    ranks = SimpleNamespace(size=size, rank=0, counts=True, all_gather_object=lambda value: [value] * size)
    return build_objective(context, None, None, ranks)


def test_what_ranks_would_carry_under_one_name_is_refused():
    assert built(1, Repeating()).carries
    with pytest.raises(ConfigError, match="twice keeps rows from step to step here, which only one process can"):
        built(2, Repeating())


@pytest.mark.parametrize("counts", [True, False])
def test_every_rank_that_counts_says_what_it_carries(counts):
    ranks = SimpleNamespace(rank=1, counts=counts, shard_spec=None)
    model = SimpleNamespace(state_dict=dict)
    state = TrainState(model, Repeating(), SimpleNamespace(slots=()), None, None, adapted=False)
    groups = checkpoint_groups(state, ranks)
    assert ("carried" in groups) == counts
    if counts:
        assert groups["carried"]["rows"].full_spec == ("I64", (3,))
