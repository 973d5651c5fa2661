"""Masks and recurrence memory of ERNIE 3.0: against numpy in float64, and by their identities.

The model is built in float64 with large weights, so that an effect is far above rounding;
what is rounded most, to 1e-7, are the tables of the rotary positions.
"""

from __future__ import annotations

import math

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie3.architecture import Architecture
from erniecore_ernie3.model import Ernie3

SOURCE = {
    "model_type": "ernie3",
    "vocab_size": 40,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "num_task_layers": 1,
    "task_hidden_size": 8,
    "task_intermediate_size": 10,
    "task_num_attention_heads": 2,
    "memory_length": 6,
    "layer_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.5,
}

_erf = np.vectorize(math.erf)


class Reference:
    """ERNIE 3.0 again, in numpy and float64, loop by loop: one row, weights ``state`` under our names, matrices [in, out]."""

    def __init__(self, arch, state):
        self.arch, self.state = arch, {name: np.asarray(value, np.float64) for name, value in state.items()}

    def generation(self, ids, memory=None, start=0):
        """Hidden states [S, H] of a segment, and per layer what it remembers of it."""
        return self._run("nlg", ids, memory, start, bidirectional=False)

    def understanding(self, ids):
        return self._run("nlu", ids, None, 0, bidirectional=True)[0]

    def _run(self, task, ids, memory, start, bidirectional):
        arch, x, kept = self.arch, self.state["model.embed_tokens.weight"][ids], []
        names = [f"model.layers.{i}." for i in range(arch.num_universal_layers)]
        names += [f"{task}.layers.{i}." for i in range(arch.num_task_layers)]
        for index, name in enumerate(names):
            block = arch.universal if index < arch.num_universal_layers else arch.task
            if index == arch.num_universal_layers and arch.projects:
                x = self._linear(f"{task}.in_proj", x)
            old = np.zeros((0, block.hidden)) if memory is None else memory[index]
            y = self._layer(name, block, x, old, start, bidirectional)
            new = np.concatenate([old, x if arch.recurrence == "layer-below" else y])
            kept.append(new[max(0, len(new) - arch.memory_length) :])
            x = y
        x = self._norm(f"{task}.norm", x)
        return (self._linear(f"{task}.out_proj", x) if arch.projects else x), kept

    def _layer(self, name, block, x, memory, start, bidirectional):
        normed = self._norm(f"{name}input_layernorm", x)
        keys = np.concatenate([self._norm(f"{name}input_layernorm", memory), normed])
        first = start - len(memory)
        q = self._heads(f"{name}self_attn.q_proj", normed, block, start)
        k = self._heads(f"{name}self_attn.k_proj", keys, block, first)
        v = self._linear(f"{name}self_attn.v_proj", keys).reshape(len(keys), block.heads, -1)
        out = np.zeros((len(x), block.heads, block.head_dim))
        for i in range(len(x)):
            last = len(keys) if bidirectional else len(memory) + i + 1
            for h in range(block.heads):
                scores = k[:last, h] @ q[i, h] / math.sqrt(block.head_dim)
                weights = np.exp(scores - scores.max())
                out[i, h] = weights @ v[:last, h] / weights.sum()
        x = x + self._linear(f"{name}self_attn.o_proj", out.reshape(len(x), -1))
        up = self._linear(f"{name}mlp.up_proj", self._norm(f"{name}post_attention_layernorm", x))
        return x + self._linear(f"{name}mlp.down_proj", up * 0.5 * (1 + _erf(up / math.sqrt(2))))

    def _heads(self, name, x, block, first):
        """Projected, split into heads [n, h, d], and turned by the position: columns 2i and 2i + 1 are a pair."""
        split = self._linear(name, x).reshape(len(x), block.heads, -1)
        half = block.head_dim // 2
        angles = (first + np.arange(len(x)))[:, None] * self.arch.rope_theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        even, odd = split[..., 0::2], split[..., 1::2]
        return np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(split.shape)

    def _linear(self, name, x):
        return x @ self.state[f"{name}.weight"] + self.state[f"{name}.bias"]

    def _norm(self, name, x):
        if not len(x):
            return x
        centered = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centered**2).mean(-1, keepdims=True) + self.arch.layer_norm_eps)
        return centered / scale * self.state[f"{name}.weight"] + self.state[f"{name}.bias"]


def build(**changes):
    arch = Architecture.parse({**SOURCE, **changes})
    paddle.seed(3)
    model = Ernie3(arch, dtype="float64")
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # they start at zero, where a missing one would not show
            parameter.set_value(paddle.randn(parameter.shape, dtype="float64") * 0.3)
    model.eval()
    return model


def ids(count, seed=0):
    return np.random.default_rng(seed).integers(3, 40, (1, count))


def recur(model, tokens, length, **masks):
    """Hidden states [n, H] of a document in segments of ``length``, each behind the memory of those before."""
    memory, parts = None, []
    for start in range(0, tokens.shape[1], length):
        out = model.recur(paddle.to_tensor(tokens[:, start : start + length]), memory=memory, start=start, **masks)
        memory = out.memory
        parts.append(out.hidden.numpy())
    return np.concatenate(parts, axis=1)[0]


def generated(model, tokens):
    return model.features(paddle.to_tensor(tokens)).hidden.numpy()[0]


@pytest.mark.parametrize(("recurrence", "memory"), [("same-layer", 6), ("layer-below", 6), ("same-layer", 0)])
def test_three_segments_are_those_of_numpy_in_float64(recurrence, memory):
    model, tokens = build(recurrence=recurrence, memory_length=memory), ids(12)
    reference = Reference(model.arch, model.state_dict())
    expected, kept = [], None
    for start in (0, 4, 8):
        hidden, kept = reference.generation(tokens[0, start : start + 4], kept if memory else None, start)
        expected.append(hidden)
    np.testing.assert_allclose(recur(model, tokens, 4), np.concatenate(expected), rtol=0, atol=1e-5)


def test_understanding_is_that_of_numpy_in_float64():
    model, tokens = build(), ids(7)
    found = model.understand(paddle.to_tensor(tokens)).numpy()[0]
    np.testing.assert_allclose(found, Reference(model.arch, model.state_dict()).understanding(tokens[0]), atol=1e-5)


def test_with_one_width_there_are_no_projections():
    model, tokens = build(task_hidden_size=12), ids(5)
    assert not [name for name in model.state_dict() if "in_proj" in name or "out_proj" in name]
    expected, _ = Reference(model.arch, model.state_dict()).generation(tokens[0])
    np.testing.assert_allclose(generated(model, tokens), expected, atol=1e-6)


def test_a_token_changes_what_the_masks_say_and_nothing_else():
    model, tokens = build(), ids(9)
    other = tokens.copy()
    other[0, 4] = (tokens[0, 4] - 2) % 37 + 3
    moved = np.abs(generated(model, other) - generated(model, tokens)).max(1)
    assert not moved[:4].any()
    assert (moved[4:] > 1e-6).all()
    both = [model.understand(paddle.to_tensor(rows)).numpy()[0] for rows in (tokens, other)]
    assert (np.abs(both[1] - both[0]).max(1) > 1e-6).all()


def test_padding_is_not_attended_to_by_either_module():
    model, tokens = build(), ids(6)
    padded, mask = np.concatenate([tokens, [[0, 0, 0]]], axis=1), np.array([[1] * 6 + [0] * 3])
    masked = {"attention_mask": paddle.to_tensor(mask)}
    for run in (model.understand, lambda *a, **k: model.recur(*a, **k).hidden):
        plain = run(paddle.to_tensor(tokens)).numpy()
        np.testing.assert_allclose(run(paddle.to_tensor(padded), **masked).numpy()[:, :6], plain, atol=1e-12)


def test_memory_of_the_layer_below_equals_the_longer_context():
    """That much of Transformer-XL is a cache: with room for the whole past, segments are the whole document."""
    model, tokens = build(recurrence="layer-below", memory_length=64), ids(12)
    np.testing.assert_allclose(recur(model, tokens, 4), generated(model, tokens), atol=1e-6)


def test_memory_of_the_same_layer_is_another_function_behind_the_first_segment():
    model, tokens = build(recurrence="same-layer", memory_length=64), ids(12)
    distance = np.abs(recur(model, tokens, 4) - generated(model, tokens)).max(1)
    assert distance[:4].max() < 1e-6 < 1e-3 < distance[4:].min()


@pytest.mark.parametrize(("recurrence", "reached"), [("same-layer", True), ("layer-below", False)])
def test_one_layer_reaches_every_segment_before_only_by_its_own_memory(recurrence, reached):
    """A memory of one segment and one layer: of the layer below it holds embeddings, of the same layer what the segment before
    had read of the one before it."""
    model, tokens = build(recurrence=recurrence, memory_length=4, num_hidden_layers=2), ids(12)
    other = tokens.copy()
    other[0, 0] = (tokens[0, 0] - 2) % 37 + 3  # two segments back from the last one
    first, second = (_one_layer(model, rows) for rows in (tokens, other))
    assert bool(np.abs(second - first).max() > 1e-9) is reached


@pytest.mark.parametrize(
    ("recurrence", "layers", "reached"),
    [("layer-below", 2, 2), ("layer-below", 3, 3), ("same-layer", 2, 4), ("same-layer", 3, 4)],
)
def test_as_many_segments_are_reached_as_there_are_layers_or_all_of_them(recurrence, layers, reached):
    """A whole pass for generation over five segments, with a memory of one: a token of the first changes this one, and so many
    behind it, and no bit of the others."""
    model, tokens = build(recurrence=recurrence, memory_length=4, num_hidden_layers=layers), ids(20)
    other = tokens.copy()
    other[0, 1] = (tokens[0, 1] - 2) % 37 + 3
    moved = np.abs(recur(model, other, 4) - recur(model, tokens, 4)).max(1).reshape(5, 4).max(1)
    assert [segment for segment in range(5) if moved[segment]] == list(range(reached + 1))
    assert moved[: reached + 1].min() > 1e-9, "above rounding"


def _one_layer(model, tokens):
    """What the first layer keeps of the last of three segments, or gives out of it."""
    layer, memory, out = model.model.layers[0], None, None
    for start in (0, 4, 8):
        past = 0 if memory is None else memory.shape[1]
        x = model.model.embed_tokens(paddle.to_tensor(tokens[:, start : start + 4]))
        positions = paddle.arange(start - past, start + 4, dtype="int64").unsqueeze(0)
        out = layer(x, memory, model._context(positions))
        memory = model._remembered(memory, x if model.arch.recurrence == "layer-below" else out)
    return out.numpy()


def test_the_memory_is_cut_and_carries_no_gradient():
    model, tokens = build(), ids(10)
    first = model.recur(paddle.to_tensor(tokens[:, :8]))
    assert [list(kept.shape) for kept in first.memory] == [[1, 6, 12], [1, 6, 12], [1, 6, 8]]
    model.recur(paddle.to_tensor(tokens[:, 8:]), memory=first.memory, start=8).hidden.sum().backward()
    learned = np.abs(model.model.embed_tokens.weight.grad.numpy()).sum(1)
    own = set(tokens[0, 8:])
    assert {int(row) for row in np.flatnonzero(learned)} == own
    assert own < set(tokens[0])


def test_positions_are_relative_with_and_without_a_memory():
    model, tokens = build(), ids(8)
    at = [model.features(paddle.to_tensor(tokens), position_ids=paddle.arange(n, n + 8).unsqueeze(0)) for n in (0, 50)]
    np.testing.assert_allclose(at[1].hidden.numpy(), at[0].hidden.numpy(), atol=1e-4)


@pytest.mark.parametrize("granularity", ["full", "attention", "core-attention"])
def test_recomputation_changes_no_gradient(granularity):
    tokens, found = ids(8), []
    for chosen in ("none", granularity):
        model = build()
        model.train()
        model.set_recompute(chosen)
        out = model.recur(paddle.to_tensor(tokens), memory=model.recur(paddle.to_tensor(ids(6, 1))).memory, start=6)
        (out.hidden.sum() + model.understand(paddle.to_tensor(tokens)).sum()).backward()
        found.append({n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(found[0][name], value) for name, value in found[1].items())


def test_a_model_for_generation_alone_cannot_understand():
    model = build(task_modules=["nlg"])
    assert not [name for name in model.state_dict() if name.startswith(("nlu", "heads"))]
    with pytest.raises(ValueError, match="no `nlu` in task_modules"):
        model.understand(paddle.to_tensor(ids(3)))


def test_dropout_is_of_training_alone():
    model, tokens = Ernie3(Architecture.parse(SOURCE), dropout=0.5, dtype="float64"), paddle.to_tensor(ids(6))
    model.train()
    assert not np.array_equal(model(tokens).numpy(), model(tokens).numpy())
    model.eval()
    assert np.array_equal(model(tokens).numpy(), model(tokens).numpy())
