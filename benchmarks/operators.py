"""Operators one by one, with the installed kernel and with the reference, in turns: milliseconds, the ratio, and how much of
the machine's copy rate the kernel reaches with the bytes that the operator must at least move.

    python -m benchmarks.operators [--rounds 15 --threads 2] [NAME …]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.packed import in_turns, memory_rates, open_device


class Case(NamedTuple):
    """A call of an operator's function. ``moved``: bytes that it reads and writes at least."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    moved: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    open_device(args.threads)
    import paddle

    copied, _ = memory_rates(args.rounds)
    print(f"{args.threads} threads, copy {copied / 1e9:.1f} GB/s (bytes read and written)\n")
    print("| operator | reference ms | kernel ms | × | GB/s | of the copy |\n|---|---|---|---|---|---|")
    with paddle.no_grad():
        for case in cases():
            if args.names and not any(case.name.startswith(name) for name in args.names):
                continue
            reference = case.function.__wrapped__  # type: ignore[attr-defined]
            calls = {"kernel": timed(case.function, case.arguments), "reference": timed(reference, case.arguments)}
            times = in_turns(calls, args.rounds)
            slow, fast = times["reference"], times["kernel"]
            rate = case.moved / fast
            line = f"{1e3 * slow:.2f} | {1e3 * fast:.2f} | {slow / fast:.1f} | {rate / 1e9:.1f} | {rate / copied:.2f}"
            print(f"| {case.name} | {line} |", flush=True)


def timed(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], float]:
    """Seconds of one call."""

    def run() -> float:
        started = time.perf_counter()
        function(*arguments)
        return time.perf_counter() - started

    return run


def cases() -> Iterator[Case]:
    """Sizes of dense-M (2 × 1,024 tokens, hidden 512) and more elements than the caches hold."""
    import paddle

    from erniecore.ops import adamw, fp8
    from erniecore.ops.embedding import embedding_backward
    from erniecore.ops.rms_norm import rms_norm_forward
    from erniecore.ops.rope import rotate
    from erniecore.ops.swiglu import swiglu_forward

    shapes = [[512, 512]] * 40 + [[2048, 512]] * 12 + [[512]] * 20 + [[8192, 512]]
    parameters = [[paddle.rand(shape) for shape in shapes] for _ in range(4)]
    count, total = len(shapes), sum(int(x.size) for x in parameters[0])
    terms = adamw.Terms(0.9, 0.95, 1e-8, 0.5, 0.5, 0.9)
    rest = [1e-5] * count, [0.1] * count, terms
    yield Case("adamw, 27 M parameters, clipped", adamw.adamw_, (*parameters, *rest), 28.0 * total)
    halves = [[x.astype("bfloat16") for x in xs] for xs in parameters[2:]]
    yield Case("adamw, moments in bfloat16", adamw.adamw_, (*parameters[:2], *halves, *rest), 20.0 * total)
    yield Case("square_sum, 27 M", adamw.square_sum, (parameters[1],), 4.0 * total)
    ids, dy = paddle.randint(0, 32000, [2, 1024]), paddle.randn([2, 1024, 512])
    arguments = ids, dy, 32000
    yield Case("embedding_backward, 32,000 × 512", embedding_backward, arguments, 4.0 * 512 * (32000 + 2048))
    x, one, rows = paddle.randn([4096, 4096]), paddle.ones([1]), paddle.rand([4096, 1]) + 0.5
    big = 8.0 * 4096 * 4096
    yield Case("fp8_quantize e4m3, one scale, 4096²", fp8.fp8_quantize, (x, one, "e4m3"), big)
    yield Case("fp8_quantize e5m2, a scale per row", fp8.fp8_quantize, (x, rows, "e5m2"), big)
    yield Case("hadamard, blocks of 32, 4096²", fp8.hadamard, (x, 32), big)
    weight = paddle.ones([4096])
    yield Case("rms_norm_forward, 4096²", rms_norm_forward, (x, weight, 1e-5), big)
    yield Case("swiglu_forward, 4096²", swiglu_forward, (x, x), 1.5 * big)
    heads, angles = x.reshape([4, 1024, 32, 128]), paddle.rand([1, 1024, 64])
    yield Case("rotate, 4 × 1,024 × 32 × 128", rotate, (heads, angles, angles), big)


if __name__ == "__main__":
    main()
