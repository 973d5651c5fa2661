"""New weights are a function of seed, name and position; their distribution is what the initializer says."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ops.random_values import Distribution, distribution_of, draw
from paddle import nn  # noqa: TID253

from erniecore.engine import arrays
from erniecore.engine.models import random_weights
from erniecore.engine.models.filling import fill, keep_part
from erniecore.engine.models.random_weights import _table, attach_random
from erniecore.errors import PluginError
from erniecore.types.model import TensorMap

NORMAL = Distribution("normal", 0.0, 0.02)
#: more than one task of a thread
LARGE = (3, 700_001)


def values(seed, name, shape, chosen, dtype, start=0, stop=None):
    return draw(f"{seed}/{name}", shape, _table(chosen, dtype), start, stop)


def fill_random(model, names, seed):
    attach_random(model, names, seed)
    fill(model)


def test_the_rule_is_a_contract():
    """These values are in model directories and behind runs that continue."""
    found = values(42, "model.norm.weight", (4,), NORMAL, "float32")
    assert found.tolist() == [
        -0.041254911571741104,
        -0.004193100146949291,
        -0.014086111448705196,
        -0.041390690952539444,
    ]


def test_any_slice_has_the_values_of_the_whole():
    whole = values(1, "a", LARGE, NORMAL, "float32").reshape(-1)
    for start, stop in ((0, 1), (5, 37), (16, 32), (700_001, 1_400_002), (2_000_000, whole.size)):
        assert np.array_equal(values(1, "a", LARGE, NORMAL, "float32", start, stop), whole[start:stop])


def test_seed_and_name_make_other_values():
    found = [values(seed, name, (1000,), NORMAL, "float32") for seed, name in ((1, "a"), (2, "a"), (1, "b"))]
    assert all(abs(float(np.corrcoef(found[i], found[j])[0, 1])) < 0.12 for i, j in ((0, 1), (0, 2), (1, 2)))


def test_values_are_normal():
    found = values(3, "w", (1 << 20,), Distribution("normal", 0.5, 2.0), "float32").astype(np.float64)
    z = (found - 0.5) / 2.0
    assert abs(z.mean()) < 4e-3
    assert z.var() == pytest.approx(1.0, abs=6e-3)
    assert (z**4).mean() == pytest.approx(3.0, abs=0.04)
    assert (np.abs(z) > 1.96).mean() == pytest.approx(0.05, abs=1e-3)
    assert abs(float((z[1:] * z[:-1]).mean())) < 4e-3


def test_low_dtypes_are_the_float32_values_rounded():
    whole = values(1, "a", (1000,), NORMAL, "float32")
    assert np.array_equal(values(1, "a", (1000,), NORMAL, "bfloat16"), arrays.float32_to_bfloat16(whole))
    assert np.array_equal(values(1, "a", (1000,), NORMAL, "float16"), whole.astype(np.float16))


class Mixed(nn.Layer):
    """A parameter of every initializer that is known, one of another kind, and a buffer."""

    def __init__(self):
        super().__init__()
        initializer = nn.initializer
        kinds = {
            "normal": initializer.Normal(0.1, 0.02),
            "constant": initializer.Constant(3.0),
            "uniform": initializer.Uniform(-2.0, 4.0),
            "glorot": initializer.XavierUniform(),
            "glorot_normal": initializer.XavierNormal(),
            "truncated": initializer.TruncatedNormal(0.0, 1.0, 0, -0.5, 0.5),
        }
        for name, kind in kinds.items():
            setattr(self, name, self.create_parameter([300, 500], default_initializer=kind))
        self.register_buffer("steps", paddle.full([1], 7.0))


class Names:
    """Public names are ours."""

    def __init__(self, model, store=lambda array: [array]):
        self.shapes, self.store = {n: tuple(t.shape) for n, t in model.state_dict().items()}, store

    def maps(self, layout, names=()):
        return [TensorMap(n, s, (n,), (s,), lambda a: a[0], self.store) for n, s in self.shapes.items()]


def built():
    with paddle.LazyGuard():
        return Mixed()


def test_initializers_say_how_values_are_distributed():
    model = built()
    chosen = {name: distribution_of(parameter) for name, parameter in model.named_parameters()}
    assert chosen.pop("truncated") is None
    limit = np.sqrt(6.0 / 800)
    assert chosen["glorot"] == ("uniform", pytest.approx(-limit), pytest.approx(limit))
    fill_random(model, Names(model), 1)
    seen = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert seen["steps"].tolist() == [7.0]
    assert set(np.unique(seen["constant"])) == {3.0}
    assert seen["normal"].mean() == pytest.approx(0.1, abs=1e-3)
    assert (seen["uniform"].min(), seen["uniform"].max()) == (pytest.approx(-2, abs=1e-3), pytest.approx(4, abs=1e-3))
    assert seen["glorot_normal"].std() == pytest.approx(np.sqrt(2.0 / 800), rel=0.02)
    assert np.abs(seen["truncated"]).max() <= 0.5


def test_other_initializers_follow_seed_and_name_and_leave_the_generator_alone():
    found = []
    for state in (1, 2):
        model = built()
        paddle.seed(state)
        expected = paddle.rand([2]).tolist()
        paddle.seed(state)
        fill_random(model, Names(model), 5)
        assert paddle.rand([2]).tolist() == expected
        found.append(model.truncated.numpy())
    assert np.array_equal(*found)


def test_one_that_cannot_be_written_is_named():
    model = built()
    with pytest.raises(PluginError, match="cannot write"):
        fill_random(model, Names(model, None), 1)


class Stack(nn.Layer):
    """Eight matrices, each with a public name."""

    def __init__(self):
        super().__init__()
        self.experts = self.create_parameter([8, 6, 10], default_initializer=nn.initializer.Normal(0.0, 1.0))

    def maps(self, layout, names=()):
        def load(parts):
            return np.stack(parts).swapaxes(-1, -2)

        sources = tuple(f"experts.{number}" for number in range(8))
        return [TensorMap("experts", (8, 6, 10), sources, ((10, 6),) * 8, load, None, stacked=True)]


def test_a_rank_makes_the_values_of_the_matrices_that_it_keeps(monkeypatch):
    made, draw_ = [], random_weights.draw
    monkeypatch.setattr(random_weights, "draw", lambda key, *rest: made.append(key) or draw_(key, *rest))

    def stack(*cuts):
        with paddle.LazyGuard():
            layer = Stack()
        attach_random(layer, layer, 3)
        for cut in cuts:
            keep_part(layer.experts, cut)
        made.clear()
        fill(layer)
        return layer.experts.numpy()

    whole = stack()
    assert len(made) == 8
    assert np.array_equal(stack([slice(2, 4), slice(1, 5)]), whole[2:4, 1:5])
    assert made == ["3/experts.2", "3/experts.3"]
    assert np.array_equal(stack([slice(2, 7)], [slice(1, 3), slice(0, 6), slice(4, 9)]), whole[3:5, :, 4:9])
    assert len(made) == 5
