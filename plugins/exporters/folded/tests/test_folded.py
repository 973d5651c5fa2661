"""What is folded computes the same for who knows no gates; what cannot be folded is refused."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance import parametrize_checks
from erniecore_ernie45.residual import gates
from safetensors.numpy import load_file, save_file

import erniecore
from erniecore.errors import CheckpointError


@parametrize_checks("exporter", "hf-folded")
def test_conformance(check):
    check()


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    """``scaled(model, value)``: a directory of new weights, scaled norms, and gates of this value."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    home = tmp_path_factory.mktemp("folded")
    (home / "tok").mkdir()
    train([f"{a} plus {b}" for a in range(30) for b in range(30)], 300).save(home / "tok")

    def make(model, value):
        out = home / f"{model}-{value}"
        size = "hidden_size=32,num_hidden_layers=3,num_attention_heads=4,num_key_value_heads=2,initializer_range=0.3"
        init_model(model, size, home / "tok", out)
        config = json.loads((out / "config.json").read_text())
        scaling = {"gpas": "straight-through", "layer_norm_scaling": True}
        (out / "config.json").write_text(json.dumps({**config, **scaling}))
        gate = np.array([value], "float32")
        added = {f"model.layers.{layer}.residual.gate": gate for layer in range(3)}
        (out / "erniecore_manifest.json").unlink()  # the weights are changed on purpose
        save_file({**load_file(out / "model.safetensors"), **added}, out / "model.safetensors")
        return out

    return make


@pytest.mark.parametrize("model", ["ernie45", "ernie45-moe"])
def test_a_reader_without_gates_gets_the_same_log_probabilities(model, scaled, tmp_path):
    source = scaled(model, 0.35)
    erniecore.export(str(source), str(tmp_path / "out"), to="hf-folded")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert not {"gpas", "layer_norm_scaling"} & config.keys()
    one, other = (erniecore.load_model(str(path)) for path in (source, tmp_path / "out"))
    assert len(list(gates(one))) == 3
    assert list(gates(other)) == []
    ids = paddle.to_tensor(np.random.default_rng(0).integers(0, 200, (2, 12)))
    with paddle.no_grad():
        ours, theirs = (paddle.nn.functional.log_softmax(m(ids)).numpy() for m in (one, other))
    np.testing.assert_allclose(theirs, ours, atol=2e-3)
    assert np.abs(ours).max() > 1


def test_a_fold_that_changes_too_much_is_refused(scaled, tmp_path):
    with pytest.raises(CheckpointError, match="cannot be folded"):
        erniecore.export(str(scaled("ernie45", 1.2785)), str(tmp_path / "out"), to="hf-folded")
    assert not (tmp_path / "out").exists()
