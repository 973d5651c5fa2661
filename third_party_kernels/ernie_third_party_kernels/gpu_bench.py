"""The GPU kernels at the sizes of 21B-A3B against the GPU itself: the rate of a copy and of a large bfloat16 product are
measured beside them, in the same process. ``share`` is the time that the slower of the two limits allows, for the bytes that
must be moved and the FLOPs that must be done, over the kernel's time. Used by ``selftest --bench``.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ernie_third_party_kernels import gpu


class Sizes(NamedTuple):
    """Of the model and of the work: ``tokens`` of a training step, ``few`` of a decoding step."""

    tokens: int = 8192
    few: int = 8
    hidden: int = 2560
    heads: int = 20
    key_heads: int = 4
    head: int = 128
    mlp: int = 12288
    experts: int = 64
    chosen: int = 6
    expert: int = 1536
    vocab: int = 103424
    copied: int = 1 << 29
    product: int = 8192
    samples: int = 8


TINY = Sizes(96, 2, 64, 4, 2, 16, 64, 4, 2, 32, 100, 1 << 10, 64, 2)


class Case(NamedTuple):
    """A call with the bytes that it must move and its FLOPs."""

    what: str
    call: Callable[[], Any]
    moved: float
    flops: float


class Maker:
    """Random tensors of one framework on one device."""

    def __init__(self, lib: Any, device: str) -> None:
        self.lib, self.device, self.rng = lib, device, np.random.default_rng(0)

    def floats(self, *shape: int) -> Any:
        """bfloat16; float32 in the interpreter, which is numpy."""
        if self.device == "cpu":
            return gpu.from_array(self.lib, self.rng.standard_normal(shape).astype(np.float32), "cpu")
        if self.lib.__name__ == "torch":
            return self.lib.randn(*shape, device="cuda", dtype=self.lib.bfloat16)
        return self.lib.randn(shape).astype("bfloat16")

    def array(self, values: Any) -> Any:
        """A tensor of a numpy array."""
        return gpu.from_array(self.lib, values, self.device)


def bench(lib: Any, device: str) -> None:
    """Print the table of measurements."""
    make = Maker(lib, "cpu" if device == "interpreter" else "cuda")
    sizes, rounds = (TINY, 1) if make.device == "cpu" else (Sizes(), 20)
    width = 4 if make.device == "cpu" else 2
    copied = 2.0 * width * sizes.copied / seconds(lib, make.device, make.floats(sizes.copied).clone, rounds)
    multiplied = 2.0 * sizes.product**3 / seconds(lib, make.device, square(make, sizes.product), rounds)
    machine = (
        gpu.gpu_name(lib) if make.device == "cuda" else "Triton's interpreter, tiny sizes: the numbers mean nothing"
    )
    print(f"{machine}; {lib.__name__} {lib.__version__}, triton {importlib.import_module('triton').__version__}")
    print(f"copies {copied / 1e9:.0f} GB/s (read and written), products {multiplied / 1e12:.1f} TFLOP/s\n")
    print("| operator | ms | GB/s | TFLOP/s | share of the limit |\n|---|---|---|---|---|")
    for case in cases(make, sizes, width):
        took = seconds(lib, make.device, case.call, rounds)
        limit = max(case.moved / copied, case.flops / multiplied)
        rates = f"{case.moved / took / 1e9:.0f} | {case.flops / took / 1e12:.2f}"
        print(f"| {case.what} | {1e3 * took:.3f} | {rates} | {limit / took:.2f} |", flush=True)


def square(make: Maker, n: int) -> Callable[[], Any]:
    """A product of n x n by n x n."""
    x = make.floats(n, n)
    return lambda: make.lib.matmul(x, x)


def seconds(lib: Any, device: str, call: Callable[[], Any], rounds: int) -> float:
    """Of one call: the median over rounds of ten calls each, after one that compiles."""
    call()
    repeats, found = 10 if device == "cuda" else 1, []
    for _ in range(rounds):
        if device == "cuda":
            gpu.wait(lib)
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        if device == "cuda":
            gpu.wait(lib)
        found.append((time.perf_counter() - started) / repeats)
    return float(np.median(found))


def cases(make: Maker, s: Sizes, width: int) -> Iterator[Case]:
    """Every operator; tensors of one case are gone before the next ones are made."""
    yield from _attention(make, s, width)
    yield from _experts(make, s, width)
    yield from _loss(make, s, width)
    yield from _packed(make, s, width)
    yield from _rows(make, s, width)


def _module(operator: str) -> Any:
    return importlib.import_module(f"ernie_third_party_kernels.{operator}.triton")


def _attention(make: Maker, s: Sizes, width: int) -> Iterator[Case]:
    module, T, scale = _module("attention"), s.tokens, s.head**-0.5
    q, dy = (make.floats(1, T, s.heads, s.head) for _ in range(2))
    k, v = (make.floats(1, T, s.key_heads, s.head) for _ in range(2))
    outer, inner = width * T * s.heads * s.head, width * T * s.key_heads * s.head
    each = -(-T // s.samples)
    packed = make.array(np.minimum((np.arange(T) // each + 1) * each, T).astype(np.int32)[None])
    for name, ends, scores in (
        (f"1 x {T}", None, s.heads * T * (T + 1) / 2),
        (f"{s.samples} packed samples of {each}", packed, s.heads * T * (each + 1) / 2),
    ):
        y, lse = module.forward(q, k, v, ends, scale)
        call = lambda ends=ends: module.forward(q, k, v, ends, scale)  # noqa: E731
        yield Case(f"attention, {name}", call, 2.0 * (outer + inner), 4.0 * s.head * scores)
        back = lambda ends=ends, y=y, lse=lse: module.backward(q, k, v, y, lse, dy, ends, scale)  # noqa: E731
        yield Case(f"attention backward, {name}", back, 4.0 * (outer + inner), 10.0 * s.head * scores)


def _experts(make: Maker, s: Sizes, width: int) -> Iterator[Case]:
    module, rows = _module("grouped_gemm"), s.tokens * s.chosen
    share = make.rng.dirichlet(np.full(s.experts, 8.0))
    counts = [int(n) for n in np.diff(np.floor(np.concatenate([[0], np.cumsum(share)]) * rows + 1e-6))]
    counts[-1] += rows - sum(counts)
    x, dy, w = make.floats(rows, s.hidden), make.floats(rows, s.expert), make.floats(s.experts, s.hidden, s.expert)
    weights, flops = s.experts * s.hidden * s.expert, 2.0 * rows * s.hidden * s.expert
    moved = float(width * (rows * (s.hidden + s.expert) + weights))
    what = f"{rows} rows, {s.experts} experts, {s.hidden} to {s.expert}"
    yield Case(f"grouped product, {what}", lambda: module.product(x, w, counts), moved, flops)
    yield Case("its gradient of the rows", lambda: module.product(dy, w, counts, turned=True), moved, flops)
    yield Case("its gradient of the weights", lambda: module.weight_gradient(x, dy, counts), moved, flops)


def _loss(make: Maker, s: Sizes, width: int) -> Iterator[Case]:
    module, T = _module("cross_entropy"), max(8, s.tokens // 8)
    logits, labels = make.floats(T, s.vocab), make.array(make.rng.integers(0, s.vocab, T))
    factor, size = make.array(np.ones(T, np.float32)), float(width * T * s.vocab)
    _, lse = module.forward(logits, labels)
    yield Case(f"loss, {T} x {s.vocab}", lambda: module.forward(logits, labels), size, 4.0 * T * s.vocab)
    yield Case("its slopes", lambda: module.backward_(logits, labels, lse, factor), 2 * size, 3.0 * T * s.vocab)


def _packed(make: Maker, s: Sizes, width: int) -> Iterator[Case]:
    module, I, O = _module("packed_weights"), s.hidden, s.mlp  # noqa: E741
    for quant_dtype, group, bits in (("int8", 0, 8), ("int4", 64, 4), ("nf4", 64, 4)):
        qweight = make.array(make.rng.integers(-128, 128, (O * bits // 8, I)).astype(np.int8))
        scales = make.array(make.rng.random((O, -(-I // group)) if group else (O,)).astype(np.float32))
        stored = O * I * bits / 8 + 4.0 * O * (-(-I // group) if group else 1)
        for N in (1, s.few):
            x = make.floats(N, I)
            call = lambda x=x, c=qweight, z=scales, f=quant_dtype, g=group: module.matmul(x, c, z, f, g, O)  # noqa: E731
            yield Case(f"{quant_dtype}, {N} x {I} to {O}", call, stored + width * N * (I + O), 2.0 * N * I * O)


def _rows(make: Maker, s: Sizes, width: int) -> Iterator[Case]:
    T, H = s.tokens, s.hidden
    x, gate, up = make.floats(T, H), make.floats(T, s.expert), make.floats(T, s.expert)
    ones, scale = make.array(np.ones(H, np.float32)), make.array(np.ones(1, np.float32))
    norm, swiglu, fp8, count = _module("rms_norm"), _module("swiglu"), _module("fp8_quantize"), float(T * H)
    yield Case(f"RMS norm, {T} x {H}", lambda: norm.forward(x, ones, 1e-5), 2 * width * count, 4 * count)
    layer = _module("layer_norm")
    yield Case(f"layer norm, {T} x {H}", lambda: layer.forward(x, ones, ones, 1e-5), 2 * width * count, 7 * count)
    small = float(T * s.expert)
    yield Case(f"SwiGLU, {T} x {s.expert}", lambda: swiglu.forward(gate, up), 3 * width * small, 5 * small)
    yield Case("its gradients", lambda: swiglu.backward(gate, up, gate), 5 * width * small, 11 * small)
    for transform in (False, True):
        name = "FP8 with Hadamard" if transform else "FP8"
        call = lambda t=transform: fp8.quantize(x, scale, 32, t)  # noqa: E731
        yield Case(f"{name}, {T} x {H}", call, (width + 1) * count, (8.0 + 5 * transform) * count)
