"""Products with packed weights against float32 ones, and both against the machine's memory: milliseconds for 1 … 64 rows, the
bytes of the weights over the time, and that rate over the rate at which two arrays are read and added up (`read`) and one
is copied. More weights than the caches hold, in turns.

    python -m benchmarks.packed [--inputs 4096 --outputs 4096 --rounds 7]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

FORMS = (("float32", 0), ("int8", 0), ("int4", 0), ("int4", 64), ("nf4", 64))
ROWS = (1, 4, 8, 32, 64)
#: bytes of each kind of weight, all matrices together
WORKING_SET = 1 << 28


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--outputs", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    open_device(args.threads)
    import paddle

    copied, read = memory_rates(args.rounds)
    print(f"{args.threads} threads, copy {copied / 1e9:.1f} GB/s (bytes read and written), read {read / 1e9:.1f} GB/s")
    print(
        "| rows | form | ms | float32 / this | GB/s of weights | over copy | over read |\n|---|---|---|---|---|---|---|"
    )
    weights = {form: matrices(*form, args.inputs, args.outputs) for form in FORMS}
    for rows in ROWS:
        x = paddle.randn([rows, args.inputs])
        calls = {form: product(form[0], x, held) for form, held in weights.items()}
        times = in_turns(calls, args.rounds)
        for (form, group), seconds in times.items():
            rate = weights[form, group][1] / seconds
            name, ratio = f"{form}/{group}" if group else form, times["float32", 0] / seconds
            line = f"{1e3 * seconds:.3f} | {ratio:.2f} | {rate / 1e9:.1f} | {rate / copied:.2f} | {rate / read:.2f}"
            print(f"| {rows} | {name} | {line} |", flush=True)


def open_device(threads: int) -> None:
    """The cpu device with all kernels, as a run has it."""
    from erniecore import kernels
    from erniecore.builtin.cpu import plugin
    from erniecore.engine import launch
    from erniecore.types import Cluster

    device = plugin.ernie_open_device(config=plugin.Config(threads=threads), cluster=Cluster())
    launch.apply_environment(device.environment())
    device.open()
    from erniecore.ops._parallel import num_workers

    kernels.use(kernels.choose("cpu", {}), num_workers)


def matrices(form: str, group: int, inputs: int, outputs: int) -> tuple[list[Any], float]:
    """Weights of one kind, as many as fill the working set, and bytes of one."""
    import paddle

    from erniecore.ops import PackedMatrix

    if form == "float32":
        size, one = 4.0 * inputs * outputs, lambda: paddle.randn([inputs, outputs])
        return [one() for _ in range(max(2, int(WORKING_SET // size)))], size
    groups = inputs // group if group else 1
    rows = outputs if form == "int8" else outputs // 2

    def packed() -> Any:
        codes = paddle.randint(-127, 128, [rows, inputs], "int32").astype("int8")
        return PackedMatrix(codes, paddle.rand([outputs, groups] if group else [outputs]), form, group, outputs)

    size = float(rows * inputs + 4 * outputs * groups)
    return [packed() for _ in range(max(2, int(WORKING_SET // size)))], size


def product(form: str, x: Any, held: tuple[Sequence[Any], float]) -> Callable[[], float]:
    """Multiply with every matrix once; seconds of one product."""
    import paddle

    from erniecore.ops import packed_product

    multiply = paddle.matmul if form == "float32" else packed_product

    def run() -> float:
        with paddle.no_grad():
            started = time.perf_counter()
            for weight in held[0]:
                multiply(x, weight)
            return (time.perf_counter() - started) / len(held[0])

    return run


def in_turns(calls: dict[Any, Callable[[], float]], rounds: int) -> dict[Any, float]:
    """The lowest of each, A B C A B C …, as other processes only ever add."""
    found = {name: float("inf") for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name] = min(found[name], call())
    return found


def memory_rates(rounds: int) -> tuple[float, float]:
    """Bytes per second of a copy (read + written), and of a sum over an array, with the threads of the device."""
    import paddle

    from erniecore.ops._parallel import parallel_map, row_ranges

    source = paddle.ones([64, 1 << 20])
    target = paddle.empty_like(source)
    pieces = row_ranges(64, 1 << 20, 1 << 24)

    def copy(rows: tuple[int, int]) -> None:
        paddle.assign(source[rows[0] : rows[1]], output=target[rows[0] : rows[1]])

    def total(rows: tuple[int, int]) -> Any:
        return paddle._C_ops.squared_l2_norm(source[rows[0] : rows[1]])

    best = [float("inf")] * 2
    for _ in range(rounds):
        for place, work in enumerate((copy, total)):
            started = time.perf_counter()
            parallel_map(work, pieces, source)
            best[place] = min(best[place], time.perf_counter() - started)
    size = 4.0 * 64 * (1 << 20)
    return 2 * size / best[0], size / best[1]


if __name__ == "__main__":
    main()
