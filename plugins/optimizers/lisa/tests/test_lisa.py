"""The choice of layers, the update against float64 numpy, and what is kept of layers that leave."""

import gc
from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_lisa.config import LisaConfig
from erniecore_lisa.optimizer import Lisa
from erniecore_lisa.plugin import plugin
from erniecore_lisa.sampling import chosen, entered, layer_of, layers_of

from erniecore.api import ConfigError
from erniecore.api.optimizer import ParameterRole, ParameterSpec, ShardSpec, TrainedParameter
from erniecore.api.testing import SingleProcess

LAYERS = tuple(f"model.layers.{number}" for number in range(12))
NAMES = ("embed.weight", *(f"{layer}.up.weight" for layer in LAYERS[:3]), "norm.weight")


class Made:
    """Five parameters of [4, 3], three of them in layers, and their optimizer: one layer for two steps."""

    def __init__(self, dtype="float32", **settings):
        self.tensors = {}
        for index, name in enumerate(NAMES):
            self.tensors[name] = paddle.to_tensor(start(index)).astype(dtype)
            self.tensors[name].stop_gradient = False
        given = [
            TrainedParameter(n, t, ParameterRole.MATRIX, ShardSpec((4, 3)), factor=0.5, weight_decay=0.1)
            for n, t in self.tensors.items()
        ]
        self.config = LisaConfig(**{"layers": 1, "period": 2, "seed": 3, **settings})
        self.optimizer = Lisa(given, self.config, SingleProcess())

    def train(self, steps):
        for step in steps:
            for index, tensor in enumerate(self.tensors.values()):
                if not tensor.stop_gradient:
                    tensor.grad = paddle.to_tensor(gradient(index, step)).astype(tensor.dtype)
            self.optimizer.step(0.02, 0.7)
            self.optimizer.clear_gradients()

    def values(self):
        return {name: tensor.astype("float32").numpy() for name, tensor in self.tensors.items()}


def start(index):
    return np.random.default_rng(index).normal(size=(4, 3)).astype(np.float32)


def gradient(index, step):
    return np.random.default_rng((index, step)).normal(size=(4, 3)).astype(np.float32)


def test_the_choice_is_a_function_of_seed_and_period():
    """The numbers are those of Philox-4x64 with the key's first 16 bytes of BLAKE2b, sorted."""
    found = [sorted(int(layer.rpartition(".")[2]) for layer in chosen(LAYERS, 3, 0, period)) for period in range(4)]
    assert found == GOLDEN
    assert chosen(LAYERS, 12, 5, 9) == frozenset(LAYERS) == chosen(LAYERS, 99, 5, 9)
    assert chosen(LAYERS, 3, 0, 1) != chosen(LAYERS, 3, 1, 1)
    assert chosen((), 3, 0, 0) == frozenset()


GOLDEN = [[2, 3, 11], [0, 1, 9], [1, 2, 8], [5, 6, 8]]


def test_every_layer_is_as_likely_as_any_other():
    counts = dict.fromkeys(LAYERS, 0)
    for period in range(3000):
        for layer in chosen(LAYERS, 3, 1, period):
            counts[layer] += 1
    # 750 of 3000 with a deviation of 24
    assert all(abs(count - 750) < 100 for count in counts.values())


def test_layers_are_told_by_names():
    assert layers_of(["b.layers.10.x", "b.layers.9.y.bias", "b.layers.9.x", "a.blocks.1.w", "embed.weight"]) == (
        "a.blocks.1",
        "b.layers.9",
        "b.layers.10",
    )
    assert layer_of("model.norm.weight") == ""
    assert layer_of("layers.3.mlp.weight") == "layers.3"


def test_the_update_is_that_of_the_definition():
    """AdamW in float64 for what is trained, with moments of zero and steps from 1 wherever a layer enters."""
    made, steps = Made(), range(1, 12)
    layers, last = tuple(LAYERS[:3]), {}
    expected = {name: start(index).astype(np.float64) for index, name in enumerate(NAMES)}
    for step in steps:
        active = chosen(layers, 1, 3, (step - 1) // 2) | {""}
        last = {name: state for name, state in last.items() if layer_of(name) in active}
        for index, name in enumerate(NAMES):
            if layer_of(name) not in active:
                continue
            first, second, t = last.get(name, (0.0, 0.0, 0))
            g, t = 0.7 * gradient(index, step).astype(np.float64), t + 1
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            last[name] = first, second, t
            change = first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
            expected[name] = expected[name] * (1 - 0.01 * 0.1) - 0.01 * change
    assert len({chosen(layers, 1, 3, period) for period in range(6)}) == 3, "every layer had its turn"
    assert any(entered(next(iter(chosen(layers, 1, 3, p))), layers, 1, 3, p) < p for p in range(6)), "one stayed"
    made.train(steps)
    for name, values in made.values().items():
        np.testing.assert_allclose(values, expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_is_of_what_is_trained_alone(dtype):
    made = Made(dtype)
    for step in range(1, 9):
        (layer,) = made.optimizer.active
        names = {slot.name for slot in made.optimizer.slots}
        assert names == {"embed.weight", "norm.weight", f"{layer}.up.weight"}
        assert {name for name, tensor in made.tensors.items() if not tensor.stop_gradient} == names
        kept = made.optimizer.kept_tensors()
        assert {name.rpartition(".")[0] for name in kept} == names
        assert sum(t.size * t.element_size() for t in kept.values()) == 3 * 12 * (8 if dtype == "float32" else 12)
        before = made.values()
        made.train([step])
        changed = {name for name, values in made.values().items() if (values != before[name]).any()}
        assert changed == names
    del kept
    gc.collect()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_continues_bit_for_bit_within_a_period_and_at_its_end(dtype):
    straight = Made(dtype)
    straight.train(range(1, 9))
    for middle in (3, 4):
        broken, resumed = Made(dtype), Made(dtype)
        broken.train(range(1, middle + 1))
        for name, tensor in resumed.tensors.items():
            tensor.set_value(broken.tensors[name].detach())
        resumed.optimizer.resumed_at(middle)
        saved, state = broken.optimizer.state_tensors(), resumed.optimizer.state_tensors()
        assert state.keys() == saved.keys()
        for name, tensor in state.items():
            tensor.copy_(saved[name], True)
        resumed.train(range(middle + 1, 9))
        assert all(np.array_equal(values, straight.values()[name]) for name, values in resumed.values().items())


def test_all_layers_are_adamw_bit_for_bit():
    from erniecore.api.adamw import AdamW
    from erniecore.api.optimizer import AdamWConfig

    made, other = Made(layers=3), Made(layers=3)
    made.train(range(1, 6))
    other.optimizer = AdamW(other.optimizer.parameters, AdamWConfig())
    other.train(range(1, 6))
    assert all(np.array_equal(values, other.values()[name]) for name, values in made.values().items())


def test_the_plan_counts_what_is_trained_first():
    specs = [ParameterSpec(f"{layer}.w", (10, 10), "bfloat16", ParameterRole.MATRIX) for layer in LAYERS]
    specs.append(ParameterSpec("embed.weight", (7, 10), "bfloat16", ParameterRole.EMBEDDING))
    planned = plugin.ernie_optimizer_bytes(config=LisaConfig(layers=3), parameters=specs)
    assert sum(size.state for size in planned) == 8 * (300 + 70)
    assert sum(size.master for size in planned) == 4 * (300 + 70)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"adapter": object()}, "optimizer.name"),
        ({"ema": 0.9}, "train.ema"),
        ({"fixed": ["parallel.sharding_stage"]}, "parallel.sharding_stage"),
    ],
)
def test_refused_beside(settings, key):
    parallel = SimpleNamespace(fixes_trained=lambda: settings.get("fixed", []))
    train = SimpleNamespace(ema=settings.get("ema", 0))
    run = SimpleNamespace(adapter=settings.get("adapter"), train=train, parallel=parallel)
    with pytest.raises(ConfigError) as caught:
        plugin.ernie_check_settings(settings=run)
    assert key in str(caught.value)
