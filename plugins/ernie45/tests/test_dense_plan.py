"""What the plan says of a dense model, against what paddle's autograd really saves."""

from pathlib import Path

import erniecore_ernie45
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45.architecture import Architecture
from erniecore_ernie45.model import Ernie45ForCausalLM

from erniecore.config import yaml
from erniecore.planning.activations import Work, activations

TINY = Path(erniecore_ernie45.__file__).parent / "recipes" / "tiny.yaml"


def saved_bytes(model, ids):
    """Bytes of the distinct tensors that the forward pass of everything below the head keeps, parameters left out."""
    parameters, kept = {p.data_ptr() for p in model.parameters()}, {}

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            kept[tensor.data_ptr()] = tensor  # held, so that no address comes twice
        return tensor

    with paddle.autograd.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.features(ids)
    return sum(tensor.size * tensor.element_size() for tensor in kept.values())


@pytest.mark.parametrize(("rows", "length"), [(1, 512), (2, 300)])
@pytest.mark.parametrize("change", [{}, {"num_hidden_layers": 3, "intermediate_size": 200}, {"head_dim": 64}])
def test_activations_are_what_autograd_saves(rows, length, change):
    source = {**yaml.parse(TINY.read_text(), "tiny").data["model"]["architecture"], **change}
    arch = Architecture.parse(source)
    model = Ernie45ForCausalLM(arch)
    model.train()
    tokens = rows * length
    planned = activations(arch.shape(), Work(tokens=tokens, length=length))
    # the loss is not run here: the gradient beside it and the last norm's output are not kept yet
    without_loss = planned.kept - 8 * tokens * arch.hidden_size
    assert saved_bytes(model, paddle.randint(0, 1024, [rows, length])) == without_loss
