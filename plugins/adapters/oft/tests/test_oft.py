"""What OFT computes, in float64 and on real models; what it reads, writes and refuses."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from adapter_checks import NAMES, linear, logits
from erniecore_lora import adapt
from erniecore_oft.build import load
from erniecore_oft.layers import OftLinear, Rotation
from erniecore_oft.plugin import plugin
from erniecore_oft.save import save
from erniecore_oft.shapes import Blocks
from pydantic import ValidationError

from erniecore.api import CheckpointError, ConfigError
from erniecore.api.tensors import read_tensors, write_tensors


def adapted(model, **settings):
    return plugin.ernie_adapt_model(config=plugin.Config(**{"block_size": 8, **settings}), model=model)


def shaken(model, seed=1):
    paddle.seed(seed)
    for rotation in adapt.updates(model, adapt.active(model)).values():
        rotation.skew.set_value(0.1 * paddle.randn(rotation.skew.shape))
    return model


def saved(model, directory):
    directory.mkdir()
    return save(model, directory)


def blocks_of(values, size, terms=0):
    """R of each block in float64, by the definition."""
    found = []
    for row in values:
        q = np.zeros((size, size))
        q[np.triu_indices(size, 1)] = row
        q -= q.T
        if terms:
            powers = [np.linalg.matrix_power(q, n) for n in range(terms)]
            found.append(powers[0] + 2 * sum(powers[1:-1]) + powers[-1])
        else:
            found.append((np.eye(size) - q) @ np.linalg.inv(np.eye(size) + q))
    return found


def test_two_rows_turn_by_the_angle_of_their_value():
    """By hand: of Q = [[0, q], [-q, 0]] the transform is a rotation by 2 arctan q."""
    rotation = Rotation(Blocks(1, 2), "float64")
    rotation.skew.set_value(np.array([[0.75]]))  # 1 - 0.75² and 2 * 0.75 over 1 + 0.75²
    np.testing.assert_allclose(rotation.matrices().numpy(), [[[0.28, -0.96], [0.96, 0.28]]], rtol=1e-14)


@pytest.mark.parametrize("terms", [0, 4, 5, 7])
def test_the_layer_is_the_formula_in_float64(terms):
    """y = x diag(R) W + c with three blocks of four; and the gradient, by differences."""
    rng, base = np.random.default_rng(3), linear(12, 5)
    layer, rotation = OftLinear(base), Rotation(Blocks(3, 4, terms), "float64")
    layer.attach("default", "weight", rotation)
    layer.active = "default"
    values, x, dy = 0.3 * rng.normal(size=(3, 6)), rng.normal(size=(2, 7, 12)), rng.normal(size=(2, 7, 5))
    w, c = base.weight.numpy(), base.bias.numpy()

    def expected(values):
        parts = [x[..., 4 * i : 4 * i + 4] @ r for i, r in enumerate(blocks_of(values, 4, terms))]
        return np.concatenate(parts, -1) @ w + c

    rotation.skew.set_value(values)
    y = layer(paddle.to_tensor(x))
    np.testing.assert_allclose(y.numpy(), expected(values), rtol=1e-12)
    np.testing.assert_allclose(x @ rotation.merged(base.weight).numpy() + c, expected(values), rtol=1e-12)
    if not terms:
        r = rotation.matrices().numpy()
        np.testing.assert_allclose(r @ r.transpose(0, 2, 1), np.broadcast_to(np.eye(4), r.shape), atol=1e-14)
    (y * paddle.to_tensor(dy)).sum().backward()
    for place in ((0, 0), (1, 3), (2, 5)):
        step = np.zeros_like(values)
        step[place] = 1e-6
        slope = ((expected(values + step) - expected(values - step)) * dy).sum() / 2e-6
        assert rotation.skew.grad.numpy()[place] == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("terms", [0, 5])
@pytest.mark.parametrize("name", NAMES)
def test_merged_is_unmerged(model, name, terms):
    made = shaken(adapted(model(name), neumann_terms=terms))
    before, state = logits(made), {n: p.numpy() for n, p in made.state_dict().items()}
    assert np.abs(before - logits(model(name))).max() > 1e-2
    made.merge()
    np.testing.assert_allclose(logits(made), before, atol=2e-5, rtol=0)
    made.unmerge()
    assert all(np.array_equal(state[n], p.numpy()) for n, p in made.state_dict().items())


def test_it_starts_as_the_base(model):
    np.testing.assert_allclose(logits(adapted(model())), logits(model()), atol=1e-6)


@pytest.mark.parametrize("terms", [0, 6])
def test_a_saved_adapter_comes_back(model, tmp_path, terms):
    made = shaken(adapted(model(), targets=("q_proj", "down_proj"), neumann_terms=terms))
    directory = saved(made, tmp_path / "a")
    assert "base_model.model.model.layers.0.self_attn.q_proj.oft_R.weight" in set(
        read_tensors(directory / "adapter_model.safetensors")
    )
    config = json.loads((directory / "adapter_config.json").read_text())
    assert (config["oft_block_size"], config["r"], config["target_modules"]) == (8, 0, ["down_proj", "q_proj"])
    assert config["use_cayley_neumann"] == bool(terms)
    assert plugin.ernie_match_adapter(directory=directory)
    found = load(model(), directory)
    assert np.array_equal(logits(found), logits(made))
    assert all(p.stop_gradient for name, p in found.named_parameters() if ".oft." in name)
    assert np.array_equal(logits(adapted(model(), path=str(directory))), logits(made))


def test_layers_with_as_many_blocks_are_written_as_peft_wrote_them(model, tmp_path):
    directory = saved(adapted(model(), targets=("q_proj", "down_proj")), tmp_path / "a")
    file, weights = directory / "adapter_config.json", directory / "adapter_model.safetensors"
    file.write_text(json.dumps({**json.loads(file.read_text()), "r": 4, "oft_block_size": 0}))
    found = {}
    for name, array in read_tensors(weights).items():
        size = 2 * len(array)  # four blocks for the inputs of eight rows each
        found[name] = np.full((4, size * (size - 1) // 2), 0.01, np.float32)
    weights.unlink()
    write_tensors(weights, found)
    made = load(model(), directory)
    again = saved(made, tmp_path / "b")
    config = json.loads((again / "adapter_config.json").read_text())
    assert (config["r"], config["oft_block_size"]) == (4, 0)
    assert np.array_equal(logits(load(model(), again)), logits(made))


def test_shapes_for_the_plan_are_those_trained(model, tmp_path):
    for name in NAMES:
        plain = model(name)
        shapes = {n: tuple(p.shape) for n, p in plain.named_parameters()}
        planned = plugin.ernie_adapter_shapes(config=plugin.Config(block_size=8), shapes=shapes)
        made = adapted(plain)
        assert planned == {n: tuple(p.shape) for n, p in made.named_parameters() if not p.stop_gradient}
    directory = saved(made, tmp_path / "a")
    assert plugin.ernie_adapter_shapes(config=plugin.Config(path=str(directory)), shapes=shapes) == planned


def test_experts_stay_as_they_are_or_are_refused(model):
    made = adapted(model("moe"))
    assert not any("experts.oft" in name for name, _ in made.named_parameters() if "shared" not in name)
    with pytest.raises(ConfigError, match="routed experts alone, which oft has no form for"):
        adapted(model("moe"), targets=("mlp.experts.up_proj",))


def test_blocks_that_do_not_divide_the_inputs_are_refused(model):
    with pytest.raises(
        ConfigError, match=r"blocks of 48 do not divide the 64 inputs of .*; these do: 2, 4, 8, 16, 32, 64"
    ):
        adapted(model(), block_size=48)
    with pytest.raises(ValidationError, match="at least 4 terms"):
        plugin.Config(neumann_terms=3)


Q = "base_model.model.model.layers.0.self_attn.q_proj.oft_R.weight"
REFUSED = {
    "a radius": ({"coft": True}, {}, "coft"),
    "shared blocks": ({"block_share": True}, {}, "block_share"),
    "two terms": ({"use_cayley_neumann": True, "num_cayley_neumann_terms": 2}, {}, "2 terms"),
    "no triangle": ({}, {Q: np.zeros((8, 27), np.float32)}, "rotates no 64 inputs"),
    "other inputs": ({}, {Q: np.zeros((4, 28), np.float32)}, "rotates no 64 inputs"),
    "another kind": ({"peft_type": "BOFT"}, {}, "no OFT adapter"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_when_loaded(model, tmp_path, case):
    settings, tensors, text = case
    directory = saved(adapted(model(), targets=("q_proj",)), tmp_path / "a")
    file, weights = directory / "adapter_config.json", directory / "adapter_model.safetensors"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    found = {**read_tensors(weights), **tensors}
    weights.unlink()
    write_tensors(weights, found)
    with pytest.raises(CheckpointError, match=text):
        load(model(), directory)
