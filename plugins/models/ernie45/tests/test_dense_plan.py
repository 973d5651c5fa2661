"""What the plan says of a dense model, against the memory that paddle really holds."""

from pathlib import Path

import erniecore_ernie45
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45.architecture import Architecture
from erniecore_ernie45.model import Ernie45ForCausalLM
from erniecore_planner.activations import Work, activations

from erniecore import kernels
from erniecore.config import yaml

TINY = Path(erniecore_ernie45.__file__).parent / "recipes" / "tiny.yaml"


@pytest.fixture(autouse=True)
def _reference_operators():
    """The plan counts what the core's own operators keep; an earlier test may have put kernels in their place."""
    kernels.use(kernels.REFERENCES, lambda: 1)


def saved_bytes(model, ids):
    """Bytes that the forward pass of everything below the head holds: for the backward pass, and the result."""
    allocated = paddle.base.core.host_memory_stat_current_value
    model.features(ids)  # whatever is made once
    before = allocated("Allocated", 0)
    result = model.features(ids)
    after = allocated("Allocated", 0)
    del result
    return after - before


@pytest.mark.parametrize(("rows", "length"), [(1, 512), (2, 300)])
@pytest.mark.parametrize("change", [{}, {"num_hidden_layers": 3, "intermediate_size": 200}, {"head_dim": 64}])
def test_activations_are_what_autograd_saves(rows, length, change):
    source = {**yaml.parse(TINY.read_text(), "tiny").data["model"]["architecture"], **change}
    arch = Architecture.parse(source)
    model = Ernie45ForCausalLM(arch)
    model.train()
    tokens = rows * length
    planned = activations(arch.shape(), Work(tokens=tokens, length=length))
    # the loss is not run here: the gradient beside it and the ids are not there yet
    without_loss = planned.saved - tokens * (4 * arch.hidden_size + 8)
    assert saved_bytes(model, paddle.randint(0, 1024, [rows, length])) == without_loss
