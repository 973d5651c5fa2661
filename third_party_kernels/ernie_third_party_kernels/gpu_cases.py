"""The GPU kernels against float64 references in numpy: inputs, what is called, what must come out. Used by ``selftest``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

#: folders with a ``triton.py``
OPERATORS = (
    *(
        "rms_norm",
        "layer_norm",
        "swiglu",
        "cross_entropy",
        "grouped_gemm",
        "packed_weights",
        "fp8_quantize",
        "attention",
    ),
)


class Case(NamedTuple):
    """``call(module, tensors)`` of the operator's ``triton`` module on tensors of ``arrays`` -> what ``expected`` is."""

    operator: str
    what: str
    arrays: tuple[Any, ...]
    call: Callable[[Any, list[Any]], Any]
    expected: Any
    tolerance: float = 1e-5


def cases() -> Iterator[Case]:
    """A few shapes of each, with tails."""
    rng = np.random.default_rng(0)
    yield from _rows(rng)
    yield from _products(rng)
    yield from _attention(rng)


def _f32(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def _reference(folder: str) -> Any:
    return importlib.import_module(f"ernie_third_party_kernels.{folder}.reference")


def _rows(rng: np.random.Generator) -> Iterator[Case]:
    for T, H in ((3, 64), (5, 129)):
        x, w, dy = _f32(rng, T, H), _f32(rng, H), _f32(rng, T, H)
        expected = _reference("rms_norm").forward(x.astype(np.float64), w, 1e-5)
        yield Case("rms_norm", f"forward {T} x {H}", (x, w), lambda m, t: m.forward(*t, 1e-5), expected)
        expected = _reference("layer_norm").forward(x.astype(np.float64), w, dy[0], 1e-5)
        yield Case("layer_norm", f"forward {T} x {H}", (x, w, dy[0]), lambda m, t: m.forward(*t, 1e-5), expected)
        swiglu = _reference("swiglu")
        yield Case("swiglu", f"forward {T} x {H}", (x, dy), lambda m, t: m.forward(*t), swiglu.forward(x, dy))
        yield Case("swiglu", f"backward {T} x {H}", (x, dy, x), lambda m, t: m.backward(*t), swiglu.backward(x, dy, x))
    for T, V in ((4, 100), (3, 5000)):
        logits, labels = _f32(rng, T, V) * 4, rng.integers(0, V, T)
        labels[1], factor = -100, rng.random(T).astype(np.float32)
        wide = logits.astype(np.float64)
        lse = np.log(np.exp(wide).sum(axis=1))
        loss = np.where(labels < 0, 0, lse - wide[np.arange(T), labels.clip(0)])
        yield Case("cross_entropy", f"forward {T} x {V}", (logits, labels), lambda m, t: m.forward(*t), (loss, lse))
        share = np.exp(wide - lse[:, None])
        share[np.arange(T), labels.clip(0)] -= 1
        slope = share * np.where(labels < 0, 0, factor)[:, None]
        arrays = logits, labels, lse.astype(np.float32), factor
        yield Case("cross_entropy", f"backward {T} x {V}", arrays, lambda m, t: m.backward_(*t), slope)
    for transform in (False, True):
        x, scale = _f32(rng, 6, 64) * 30, np.array([0.37], np.float32)
        turned = _reference("hadamard").hadamard(x.astype(np.float64), 32).astype(np.float32) if transform else x
        expected = _reference("fp8_quantize").fp8_quantize(turned, scale, "e4m3")

        def call(m: Any, t: list[Any], transform: bool = transform) -> Any:
            return m.quantize(*t, 32, transform)

        yield Case("fp8_quantize", f"transform {transform}", (x, scale), call, expected, 0.07 if transform else 1e-6)


def _products(rng: np.random.Generator) -> Iterator[Case]:
    counts = [3, 0, 70, 1]
    x, w = _f32(rng, sum(counts), 50), _f32(rng, 4, 50, 33)
    rows = np.repeat(np.arange(4), counts)
    y = np.einsum("ni,nio->no", x.astype(np.float64), w[rows])
    dx = np.einsum("no,nio->ni", y, w[rows])
    dw = np.stack([x[rows == e].T.astype(np.float64) @ y[rows == e] for e in range(4)])

    def grouped(m: Any, t: list[Any]) -> Any:
        return (
            m.product(*t[:2], counts),
            m.product(t[2], t[1], counts, turned=True),
            m.weight_gradient(t[0], t[2], counts),
        )

    yield Case("grouped_gemm", "4 experts, and gradients", (x, w, y.astype(np.float32)), grouped, (y, dx, dw))
    reference = _reference("packed_weights")
    for quant_dtype, group, N in (("int8", 0, 1), ("int8", 32, 5), ("int4", 0, 17), ("int4", 32, 3), ("nf4", 64, 2)):
        I, O = 80 if quant_dtype != "nf4" else 1100, 71  # noqa: E741  # the last one is split among programs
        qweight = rng.integers(-128, 128, (O if quant_dtype == "int8" else (O + 1) // 2, I)).astype(np.int8)
        scales = rng.random((O, -(-I // group)) if group else (O,)).astype(np.float32)
        a = _f32(rng, N, I)
        wanted = reference.matmul(a.astype(np.float64), qweight, scales, quant_dtype, group, O)

        def multiply(m: Any, t: list[Any], quant_dtype: str = quant_dtype, group: int = group, O: int = O) -> Any:  # noqa: E741
            return m.matmul(*t, quant_dtype, group, O)

        yield Case(
            "packed_weights", f"{quant_dtype} in groups of {group}, {N} rows", (a, qweight, scales), multiply, wanted
        )


def _attention(rng: np.random.Generator) -> Iterator[Case]:
    reference = _reference("attention")
    for (B, S, K, heads, shared, d), masked in (
        ((2, 70, 70, 4, 2, 16), True),
        ((1, 5, 90, 2, 1, 24), False),
        ((1, 130, 130, 2, 2, 16), False),
    ):
        q, k, v = _f32(rng, B, S, heads, d), _f32(rng, B, K, heads // shared, d), _f32(rng, B, K, heads // shared, d)
        dy, key = _f32(rng, B, S, heads, d), np.arange(K)
        ends = np.where(key < 30, 30, np.where(key < 60, 60, key))  # two samples, and padding that nobody sees
        ends = ends[None].repeat(B, 0).astype(np.int32)
        seen = reference.visible(S, K, ends if masked else None, None)
        wide = [x.astype(np.float64) for x in (q, k, v, dy)]
        wanted = reference.forward(*wide[:3], seen, 0.3), *reference.backward(*wide, seen, 0.3)

        def attend(m: Any, t: list[Any], masked: bool = masked) -> Any:
            q, k, v, dy, ends = (*t[:4], t[4] if masked else None)
            y, lse = m.forward(q, k, v, ends, 0.3)
            return y, *m.backward(q, k, v, y, lse, dy, ends, 0.3)

        what = f"forward and backward, {S} rows, {K} keys, mask {masked}"
        yield Case("attention", what, (q, k, v, dy, ends), attend, wanted)
