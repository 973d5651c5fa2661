"""What the plan says of a mixture of experts, against the memory that paddle really holds."""

from pathlib import Path

import erniecore_ernie45_moe
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.architecture import MoeArchitecture
from erniecore_ernie45_moe.config import MoeConfig
from erniecore_ernie45_moe.model import Ernie45MoeForCausalLM
from erniecore_planner.activations import Work, activations

from erniecore import kernels
from erniecore.config import yaml

TINY = Path(erniecore_ernie45_moe.__file__).parent / "recipes" / "tiny.yaml"
SOURCE = yaml.parse(TINY.read_text(), "tiny").data["model"]["architecture"]


@pytest.fixture(autouse=True)
def _reference_operators():
    """The plan counts what the core's own operators keep; an earlier test may have put kernels in their place."""
    kernels.use(kernels.REFERENCES, lambda: 1)


def shape_of(**change):
    return MoeArchitecture.parse({**SOURCE, "num_nextn_predict_layers": 0, **change}).shape()


@pytest.mark.parametrize("change", [{}, {"moe_num_shared_experts": 0}, {"moe_k": 3, "moe_num_experts": 6}])
def test_activations_are_what_autograd_saves(change):
    arch = MoeArchitecture.parse({**SOURCE, "num_nextn_predict_layers": 0, **change})
    model, tokens = Ernie45MoeForCausalLM(arch, MoeConfig()), 512
    model.train()
    ids, allocated = paddle.randint(0, 1024, [1, tokens]), paddle.base.core.host_memory_stat_current_value
    model.features(ids)  # whatever is made once
    before = allocated("Allocated", 0)
    result = model.features(ids)
    saved = allocated("Allocated", 0) - before
    del result
    planned = activations(arch.shape(), Work(tokens=tokens, length=tokens))
    # the loss is not run here: the gradient beside it and the ids are not there yet
    assert saved == planned.saved - tokens * (4 * arch.hidden_size + 8)


def test_layers_are_dense_or_routed_as_placed():
    layers = shape_of().layers
    assert [layer.experts for layer in layers] == [0, 8, 8]
    assert [layer.mlp for layer in layers] == [384, 128, 128]
    assert (layers[1].selected, layers[1].expert) == (2, 64)


def test_prediction_layers_are_like_the_first():
    shape = shape_of(num_nextn_predict_layers=1)
    assert shape.mtp_layers == shape.layers[:1]
    assert shape_of().mtp_layers == ()
