"""Operators one by one, with the installed kernel and with the reference, in turns, against the machine's roofline: the rate
of copies and the rate of large products, measured beside them. The last column is the time that the slower of the two
limits allows, for the bytes that must be moved and the FLOPs that must be done, over the kernel's time.

    python -m benchmarks.operators [--rounds 15 --threads 2 --plot docs/explanation/roofline.svg] [OPERATOR …]

``--cpu`` counts seconds of processor time on one thread instead of wall time, for machines that others use as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.operator_cases import CASES, Case
from benchmarks.packed import in_turns, open_device

Clock = Callable[[], float]


class Limits(NamedTuple):
    """What the machine can do: bytes (read and written) and FLOPs per second."""

    bytes: float
    flops: float

    def least_seconds(self, case: Case) -> float:
        """Of the slower of moving and computing."""
        return max(case.moved / self.bytes, case.flops / self.flops)


class Found(NamedTuple):
    """Seconds of one call; ``reference`` is that of the operator in plain Paddle."""

    operator: str
    case: Case
    kernel: float
    reference: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="OPERATOR", help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--plot", type=Path, help="an .svg or .png file; needs matplotlib")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(CASES)):
        parser.error(f"no operator is called {', '.join(unknown)}; there are {', '.join(CASES)}")
    threads, clock = (1, time.process_time) if args.cpu else (args.threads, time.perf_counter)
    open_device(threads)
    found, limits = [], Limits(copy_rate(args.rounds, clock), product_rate(args.rounds, clock))
    how = "CPU time of one thread" if args.cpu else f"{threads} threads"
    knee = limits.flops / limits.bytes
    print(
        f"{how}: copies {limits.bytes / 1e9:.1f} GB/s, products {limits.flops / 1e9:.0f} GFLOP/s, {knee:.1f} per byte\n"
    )
    print("| operator | FLOPs per byte | reference ms | kernel ms | × | GB/s | GFLOP/s | of the limit |")
    print("|---|---|---|---|---|---|---|---|")
    for result in measured(args.names or list(CASES), args.rounds, clock):
        found.append(result)
        print(row(result, limits), flush=True)
    if args.plot:
        plot(found, limits, how, args.plot)
        print(f"\nwritten: {args.plot}")


def measured(names: list[str], rounds: int, clock: Clock) -> Iterator[Found]:
    """Least seconds of each case, kernel and reference in turns."""
    import paddle

    with paddle.no_grad():
        for name in names:
            for case in CASES[name]():
                reference = case.function.__wrapped__  # type: ignore[attr-defined]
                calls = {"kernel": timed(case, case.function, clock), "reference": timed(case, reference, clock)}
                times = in_turns(calls, rounds)
                yield Found(name, case, times["kernel"], times["reference"])


def timed(case: Case, function: Callable[..., Any], clock: Clock) -> Callable[[], float]:
    """Seconds of one call."""

    def run() -> float:
        if case.prepare is not None:
            case.prepare()
        started = clock()
        function(*case.arguments)
        return clock() - started

    return run


def row(found: Found, limits: Limits) -> str:
    """One line of the table."""
    case, seconds = found.case, found.kernel
    times = f"{1e3 * found.reference:.2f} | {1e3 * seconds:.2f} | {found.reference / seconds:.1f}"
    rates = f"{case.moved / seconds / 1e9:.1f} | {case.flops / seconds / 1e9:.1f}"
    share = limits.least_seconds(case) / seconds
    return f"| {case.name} | {case.flops / case.moved:.2g} | {times} | {rates} | {share:.2f} |"


def copy_rate(rounds: int, clock: Clock) -> float:
    """Bytes per second, read and written, of a copy of 256 MB."""
    import paddle
    from erniecore_ops.parallel import parallel_map, row_ranges

    source = paddle.ones([64, 1 << 20])
    target = paddle.empty_like(source)

    def copy(rows: tuple[int, int]) -> None:
        paddle.assign(source[rows[0] : rows[1]], output=target[rows[0] : rows[1]])

    pieces = row_ranges(64, 1 << 20, 1 << 24)
    return 2 * 4.0 * source.size / least(lambda: parallel_map(copy, pieces, source), rounds, clock)


def product_rate(rounds: int, clock: Clock) -> float:
    """FLOPs per second of a product of two 2048² matrices."""
    import paddle

    x = paddle.randn([2048, 2048])
    return 2 * 2048.0**3 / least(lambda: paddle.matmul(x, x), rounds, clock)


def least(work: Callable[[], Any], rounds: int, clock: Clock) -> float:
    """Seconds of the fastest call."""

    def run() -> float:
        started = clock()
        work()
        return clock() - started

    return in_turns({"": run}, rounds)[""]


def plot(found: list[Found], limits: Limits, how: str, path: Path) -> None:
    """FLOPs per second by FLOPs per byte: the two limits, kernels as dots, references as rings below them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="FLOPs per byte that must move", ylabel="GFLOP/s")
    places = [case.flops / case.moved for _, case, _, _ in found]
    ends = [min(0.05, *places), limits.flops / limits.bytes, max(1000.0, *places)]
    axes.plot(ends, [min(x * limits.bytes, limits.flops) / 1e9 for x in ends], color="0.3")
    axes.set_title(f"{how}: copies {limits.bytes / 1e9:.0f} GB/s, products {limits.flops / 1e9:.0f} GFLOP/s")
    for number, name in enumerate(dict.fromkeys(result.operator for result in found)):
        mine = [(result, x) for result, x in zip(found, places, strict=True) if result.operator == name]
        style: dict[str, Any] = {"color": f"C{number % 10}", "marker": "os^Dv"[number // 10 % 5], "linestyle": "none"}
        xs = [x for _, x in mine]
        axes.plot(xs, [r.case.flops / r.kernel / 1e9 for r, _ in mine], label=name, **style)
        axes.plot(xs, [r.case.flops / r.reference / 1e9 for r, _ in mine], fillstyle="none", alpha=0.6, **style)
    axes.legend(loc="lower right", fontsize="small", ncols=2, title="filled: kernel, ring: reference")
    axes.grid(alpha=0.2)
    figure.savefig(path)


if __name__ == "__main__":
    main()
