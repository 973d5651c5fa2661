"""AdamW against the formula in float64, decay groups, factors, and state under structured names."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ops import kernels

from erniecore.config.adamw import AdamWConfig
from erniecore.config.core import TrainSection
from erniecore.engine.optimizers.adamw import AdamW
from erniecore.engine.optimizers.parameters import gradient_square_sum, trained_parameters
from erniecore.engine.optimizers.roles import is_decayed, layer_factors, role_of
from erniecore.engine.optimizers.state import load_state_arrays, state_arrays
from erniecore.errors import CheckpointError
from erniecore.types.model import Layout, Stages
from erniecore.types.optimizer import ParameterRole

SETTINGS = AdamWConfig(beta1=0.9, beta2=0.95, epsilon=1e-6)
SHAPES = {"layers.0.mlp.weight": (5, 3), "layers.0.norm.weight": (3,), "layers.1.mlp.bias": (4,)}


def parameters(dtype="float32", seed=0):
    made = {}
    for index, (name, shape) in enumerate(SHAPES.items()):
        values = np.random.default_rng((seed, index)).normal(size=shape).astype("float32")
        made[name] = paddle.to_tensor(values).astype(dtype)
        made[name].stop_gradient = False
    return made


def adamw(named, config=AdamWConfig(), factors=None, weight_decay=0.1):  # noqa: B008
    return AdamW(trained_parameters(named, TrainSection(weight_decay=weight_decay), factors=factors), config)


def put_gradients(made, step):
    for index, (name, tensor) in enumerate(made.items()):
        tensor.grad = paddle.to_tensor(gradient(name, step, index)).astype(tensor.dtype)


def gradient(name, step, index):
    return np.random.default_rng((step, index)).normal(size=SHAPES[name]).astype("float32")


def train(made, optimizer, steps, rate=0.01):
    for step in steps:
        put_gradients(made, step)
        optimizer.step(rate)
        optimizer.clear_gradients()


def reference(start, steps, rate, factor=1.0):
    """Algorithm 2 of Loshchilov & Hutter in float64."""
    out = {}
    for index, (name, value) in enumerate(start.items()):
        w = value.astype("float64")
        m, v = np.zeros_like(w), np.zeros_like(w)
        decay = 0.1 if w.ndim > 1 else 0.0
        for t, step in enumerate(steps, 1):
            g = gradient(name, step, index).astype("float64")
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            w = w - rate * factor * decay * w
            w = w - rate * factor * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-6)
        out[name] = w
    return out


LAYOUT = Layout(
    (
        ("embed.weight", "vocab"),
        ("*.q_proj.*", "column"),
        ("*.experts.*", "expert"),
        ("*.gate.weight", "replicate"),
        ("*.join.weight", "replicate"),
    ),
    Stages("embed", "layers", "norm", head=("head",)),
    matrices=("*.join.weight",),
)


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        ("embed.weight", (8, 4), "embedding"),
        ("head.weight", (4, 8), "embedding"),
        ("layers.0.q_proj.weight", (4, 4), "matrix"),
        ("layers.0.q_proj.bias", (4,), "other"),
        ("layers.0.mlp.experts.up_proj", (2, 4, 6), "experts"),
        ("layers.0.mlp.experts.up_bias", (2, 6), "other"),
        ("layers.0.mlp.gate.weight", (4, 2), "other"),
        ("layers.0.join.weight", (8, 4), "matrix"),
        ("layers.0.norm.weight", (4,), "other"),
        ("layers.0.unheard_of", (4, 4), "other"),
    ],
)
def test_roles(name, shape, role):
    assert role_of(name, shape, LAYOUT, adapted=False) is ParameterRole(role)


def test_what_an_adapter_adds_is_a_matrix_but_beside_embeddings():
    assert role_of("layers.0.o_proj.lora.A", (4, 2), LAYOUT, adapted=True) is ParameterRole.MATRIX
    assert role_of("layers.0.mlp.experts.lora.A", (3, 4, 2), LAYOUT, adapted=True) is ParameterRole.EXPERTS
    assert role_of("head.weight", (4, 1), LAYOUT, adapted=True) is ParameterRole.EMBEDDING


def test_ten_steps_equal_the_formula():
    made = parameters()
    start = {name: tensor.numpy().copy() for name, tensor in made.items()}
    train(made, adamw(made.items(), SETTINGS), range(1, 11))
    for name, expected in reference(start, range(1, 11), 0.01).items():
        np.testing.assert_allclose(made[name].numpy(), expected, rtol=2e-6, atol=2e-6)


def test_first_step_moves_by_the_rate_against_the_gradient():
    made = {"w": paddle.to_tensor([[1.0, 1.0]])}
    made["w"].stop_gradient = False
    made["w"].grad = paddle.to_tensor([[3.0, -0.5]])
    adamw(made.items(), weight_decay=0.0).step(0.1)
    np.testing.assert_allclose(made["w"].numpy(), [[0.9, 1.1]], atol=1e-6)


def test_scale_multiplies_the_gradient():
    one, two = parameters(), parameters()
    put_gradients(one, 1)
    put_gradients(two, 1)
    for tensor in two.values():
        tensor.grad = tensor.grad * 0.25
    a, b = adamw(one.items(), SETTINGS), adamw(two.items(), SETTINGS)
    a.step(0.01, scale=0.25)
    b.step(0.01)
    assert all((state_arrays(a)[n] == state_arrays(b)[n]).all() for n in state_arrays(a))


def test_parameter_without_gradient_stays():
    made = parameters()
    before = made["layers.0.mlp.weight"].numpy().copy()
    optimizer = adamw(made.items(), SETTINGS)
    put_gradients(made, 1)
    made["layers.0.mlp.weight"].grad = None
    optimizer.step(0.1)
    assert (made["layers.0.mlp.weight"].numpy() == before).all()


def test_frozen_parameters_have_no_state():
    made = parameters()
    made["layers.0.mlp.weight"].stop_gradient = True
    state = state_arrays(adamw(made.items(), SETTINGS))
    assert sorted(state) == [
        "layers.0.norm.weight.first",
        "layers.0.norm.weight.second",
        "layers.1.mlp.bias.first",
        "layers.1.mlp.bias.second",
    ]


def test_nothing_trainable_is_an_error():
    made = parameters()
    for tensor in made.values():
        tensor.stop_gradient = True
    with pytest.raises(ValueError, match="trainable"):
        adamw(made.items(), SETTINGS)


@pytest.mark.parametrize(
    ("name", "ndim", "decays"),
    [
        ("model.layers.0.self_attn.q_proj.weight", 2, True),
        ("model.layers.0.mlp.experts.gate_proj", 3, True),
        ("model.layers.0.input_layernorm.weight", 1, False),
        ("model.norm.weight", 2, False),
        ("lm_head.bias", 1, False),
        ("model.embed_tokens.weight", 2, True),
        ("model.layers.0.mlp.gate.weight", 2, True),
        ("model.layers.0.abnormal_proj.weight", 2, True),
    ],
)
def test_decay_groups(name, ndim, decays):
    assert is_decayed(name, ndim) is decays


def test_layer_factors_are_linear_in_depth():
    names = ["model.embed_tokens.weight", "model.layers.0.w", "model.layers.1.w", "model.layers.2.w", "lm_head.weight"]
    assert list(layer_factors(names, 0.2).values()) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_layer_factors_of_one_change_nothing():
    assert set(layer_factors(["model.embed_tokens.weight", "model.layers.7.w", "x"], 1.0).values()) == {1.0}


def test_factors_by_pattern_multiply_the_rate_of_update_and_decay():
    made = parameters()
    start = {name: tensor.numpy().copy() for name, tensor in made.items()}
    train(made, adamw(made.items(), SETTINGS, {"*.mlp.weight": 16.0, "*.weight": 2.0}), range(1, 4), rate=0.001)
    for name, factor in (("layers.0.mlp.weight", 16.0), ("layers.0.norm.weight", 2.0), ("layers.1.mlp.bias", 1.0)):
        expected = reference(start, range(1, 4), 0.001, factor)[name]
        np.testing.assert_allclose(made[name].numpy(), expected, rtol=2e-6, atol=2e-6)


def test_restored_state_continues_bit_for_bit():
    straight = parameters()
    train(straight, adamw(straight.items(), SETTINGS), range(1, 11))

    broken = parameters()
    first = adamw(broken.items(), SETTINGS)
    train(broken, first, range(1, 6))
    paddle.nn.Linear(3, 3)  # generated names move on; ours must not care
    second = adamw(broken.items(), SETTINGS)
    load_state_arrays(second, state_arrays(first), first.num_updates)
    train(broken, second, range(6, 11))
    assert all((straight[n].numpy() == broken[n].numpy()).all() for n in straight)


def test_state_of_another_model_is_refused_and_changes_nothing():
    made = parameters()
    optimizer = adamw(made.items(), SETTINGS)
    arrays = state_arrays(optimizer)
    wrong = {**arrays, "layers.0.mlp.weight.first": np.ones((3, 5), "float32")}
    with pytest.raises(CheckpointError, match="shape"):
        load_state_arrays(optimizer, wrong, 3)
    del wrong["layers.0.mlp.weight.first"]
    with pytest.raises(CheckpointError) as caught:
        load_state_arrays(optimizer, wrong, 3)
    assert caught.value.where == "layers.0.mlp.weight.first"
    assert optimizer.num_updates == 0
    assert not state_arrays(optimizer)["layers.0.norm.weight.first"].any()


def test_low_precision_weights_follow_their_masters(monkeypatch):
    # both by the reference: a kernel that an earlier test left in use takes float32 weights alone, and rounds otherwise
    monkeypatch.setattr(kernels, "_in_use", {})
    made, exact = parameters("bfloat16"), parameters("bfloat16")
    optimizer = adamw(made.items(), SETTINGS)
    exact = {name: tensor.astype("float32").detach() for name, tensor in exact.items()}
    for tensor in exact.values():
        tensor.stop_gradient = False
    full = adamw(exact.items(), SETTINGS)
    for step in range(1, 21):
        put_gradients(made, step)
        for name, tensor in exact.items():
            tensor.grad = made[name].grad.astype("float32")
        optimizer.step(1e-4)
        full.step(1e-4)
    state = state_arrays(optimizer)
    for name in made:
        # steps far below a bfloat16 ulp add up in the master
        assert (state[f"{name}.master"] == exact[name].numpy()).all()
        assert (made[name] == exact[name].astype("bfloat16")).all()


def test_bfloat16_moments_are_stored_in_half_the_space_and_stay_close():
    small, full = parameters(), parameters()
    settings = SETTINGS.model_copy(update={"moments": "bfloat16"})
    optimizer = adamw(small.items(), settings)
    train(small, optimizer, range(1, 11))
    train(full, adamw(full.items(), SETTINGS), range(1, 11))
    assert state_arrays(optimizer)["layers.0.mlp.weight.first"].dtype == np.uint16
    for name in small:
        np.testing.assert_allclose(small[name].numpy(), full[name].numpy(), atol=5e-3)


def test_square_sum_is_the_squared_global_norm():
    made = parameters()
    optimizer = adamw(made.items(), SETTINGS)
    put_gradients(made, 1)
    expected = sum((gradient(n, 1, i).astype("float64") ** 2).sum() for i, n in enumerate(SHAPES))
    assert float(gradient_square_sum(optimizer)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", list(SHAPES))
def test_square_sum_shows_any_value_that_is_not_finite(bad, name):
    made = parameters()
    optimizer = adamw(made.items(), SETTINGS)
    put_gradients(made, 1)
    values = made[name].grad.numpy().copy()
    values.flat[-1] = bad
    made[name].grad = paddle.to_tensor(values)
    assert not np.isfinite(float(gradient_square_sum(optimizer)))


def test_square_sum_without_gradients_is_zero():
    assert float(gradient_square_sum(adamw(parameters().items(), SETTINGS))) == 0.0


def test_cleared_gradients_are_gone_and_the_next_ones_start_anew():
    made = parameters()
    optimizer = adamw(made.items(), SETTINGS)
    (made["layers.0.norm.weight"] * 2).sum().backward()
    optimizer.clear_gradients()
    assert list(optimizer.gradients()) == []
    (made["layers.0.norm.weight"] * 3).sum().backward()
    assert [(n, g.numpy().tolist()) for n, g in optimizer.gradients()] == [("layers.0.norm.weight", [3.0, 3.0, 3.0])]
