"""A quantized directory is opened without a random value: the layers are built empty, then filled from the files."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_model_init.new_model import init_model
from erniecore_quantize.quantize import quantize_directory
from erniecore_text.training import train
from safetensors.numpy import load_file

from erniecore.engine import arrays
from erniecore.engine.models import random_weights
from erniecore.engine.models.bundles import load_bundle

SIZE = (
    "vocab_size=400,hidden_size=64,intermediate_size=64,num_hidden_layers=2,moe_intermediate_size=64,moe_num_experts=4"
)
#: those of the capability ``empty``, and one whose layers need memory before the files fill them
QUANTIZERS = ("wint8", "wint4", "nf4", "ccq-2.5", "w8a8-qat")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    home = tmp_path_factory.mktemp("base")
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(home)
    return init_model("ernie45-moe", SIZE, home, home / "m", dtype="float32").path


@pytest.fixture
def undrawn(monkeypatch):
    """Whatever draws new weights fails the test."""
    for name in ("draw", "_own"):
        monkeypatch.setattr(random_weights, name, lambda *args, **kwargs: pytest.fail("random values were drawn"))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_nothing_is_drawn(source, tmp_path, undrawn, name):
    quantize_directory(source, tmp_path / "out", name)
    paddle.seed(7)
    model = load_bundle(tmp_path / "out", tokenizer=False).bundle.model
    behind = paddle.rand([4]).numpy()
    paddle.seed(7)
    assert np.array_equal(behind, paddle.rand([4]).numpy())  # no initializer of Paddle's ran either

    stored = {}
    for path in (tmp_path / "out").glob("weights-*.safetensors"):
        stored |= load_file(path)
    state = {key: arrays.to_numpy(tensor) for key, tensor in model.state_dict().items()}
    assert state.keys() == stored.keys()
    packed = [key for key, values in stored.items() if values.dtype.kind in "iu"]
    assert packed
    assert all(np.array_equal(state[key], stored[key]) for key in packed)
