"""Products with packed weights against float32 ones, and both against the machine's memory: milliseconds for 1 … 64 rows, the
bytes of the weights over the time, and that rate over the rate at which two arrays are read and added up (`read`) and one
is copied. More weights than the caches hold, in turns. With `--back` the gradient of the rows.

    python -m benchmarks.packed [--inputs 4096 --outputs 4096 --rounds 7]
    python -m benchmarks.packed --rows 128 512 2048 --forms float32 int8 int4 int4/64 nf4/64 [--back]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

QUANT_DTYPES = (("float32", 0), ("int8", 0), ("int4", 0), ("int4", 64), ("nf4", 64), ("ccq-2.5", 64), ("ccq-2.06", 64))
ROWS = (1, 4, 8, 32, 64)
#: bytes of each kind of weight, all matrices together
CYCLED_BYTES = 1 << 28
#: rows beyond which arithmetic decides and not memory: two matrices are enough
MANY_ROWS = 64


def measure(args: argparse.Namespace) -> str:
    """For ``benchmarks.run``: one row of x, as in decoding, in a process of its own, which has the kernels."""
    words = [sys.executable, "-m", "benchmarks.packed", "--rows", "1", "--rounds", str(max(5, args.rounds))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return f"## Packed weights, one row\n\n{done.stdout.strip()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--outputs", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--forms", nargs="*", default=[named(*form) for form in QUANT_DTYPES])
    parser.add_argument("--back", action="store_true")
    args = parser.parse_args()
    open_device(args.threads)
    import paddle

    weights, memory = (
        {
            form: matrices(*form, args.inputs, args.outputs)
            for form in QUANT_DTYPES
            if form == QUANT_DTYPES[0] or named(*form) in args.forms
        },
        Memory(),
    )
    print("| rows | form | ms | float32 / this | GB/s of weights | over copy | over read |")
    print("|---|---|---|---|---|---|---|")
    for rows in args.rows:
        x = paddle.randn([rows, args.outputs if args.back else args.inputs])
        calls = {form: product(form[0], x, weight, args.back) for form, weight in weights.items()}
        times = in_turns({**calls, "copy": memory.copy, "read": memory.read}, args.rounds)
        copied, read = 2 * memory.size / times.pop("copy"), memory.size / times.pop("read")
        for (quant_dtype, group), seconds in times.items():
            rate = weights[quant_dtype, group][1] / seconds
            name, ratio = named(quant_dtype, group), times["float32", 0] / seconds
            line = f"{1e3 * seconds:.3f} | {ratio:.2f} | {rate / 1e9:.1f} | {rate / copied:.2f} | {rate / read:.2f}"
            print(f"| {rows} | {name} | {line} |", flush=True)
        moved = f"copy {copied / 1e9:.1f} GB/s (bytes read and written), read {read / 1e9:.1f} GB/s"
        print(f"| {rows} | {args.threads} threads: {moved} | | | | | |", flush=True)


def open_device(threads: int) -> None:
    """The cpu device with all kernels, as a run has it."""
    from erniecore import kernels
    from erniecore.builtin.cpu import plugin
    from erniecore.engine import launch
    from erniecore.types.run import Cluster

    device = plugin.ernie_open_device(config=plugin.Config(threads=threads), cluster=Cluster())
    launch.apply_environment(device.environment())
    device.open()
    from erniecore_ops.parallel import num_workers

    kernels.use(kernels.choose("cpu", {}), num_workers)


def matrices(quant_dtype: str, group: int, inputs: int, outputs: int) -> tuple[list[Any], float]:
    """Weights of one kind, as many as fill the working set, and bytes of one."""
    import paddle
    from erniecore_ops.functions import QuantizedMatrix

    if quant_dtype == "float32":
        size, one = 4.0 * inputs * outputs, lambda: paddle.randn([inputs, outputs])
        return [one() for _ in range(max(2, int(CYCLED_BYTES // size)))], size
    if quant_dtype.startswith("ccq"):
        return coded(quant_dtype, inputs, outputs)
    groups = inputs // group if group else 1
    rows = outputs if quant_dtype == "int8" else outputs // 2

    def packed() -> Any:
        qweight = paddle.randint(-127, 128, [rows, inputs], "int32").astype("int8")
        return QuantizedMatrix(
            qweight, paddle.rand([outputs, groups] if group else [outputs]), quant_dtype, group, outputs
        )

    size = float(rows * inputs + 4 * outputs * groups)
    return [packed() for _ in range(max(2, int(CYCLED_BYTES // size)))], size


def coded(quant_dtype: str, inputs: int, outputs: int) -> tuple[list[Any], float]:
    """Convolutional codes of whatever weights."""
    import paddle
    from erniecore_ccq.layers import CodeMatrix

    groups, scales = inputs // 64, paddle.rand([outputs])

    def bytes_of(rows: int) -> Any:
        return paddle.randint(0, 256, [rows, outputs], "int32").astype("uint8")

    def one() -> Any:
        if quant_dtype == "ccq-2.5":
            qweight = paddle.randint(-32768, 32768, [10 * groups, outputs], "int32").astype("int16")
            return CodeMatrix(qweight, scales, quant_dtype, 64, outputs, inputs, {})
        local, book = bytes_of((groups + 1) // 2), [paddle.full([outputs], value) for value in (120.9375, 604.5)]
        others = dict(zip(("weight_scale", "code_scale", "code_zp"), (local, *book), strict=True))
        return CodeMatrix(bytes_of(16 * groups), scales, quant_dtype, 64, outputs, inputs, others)

    each = 20 * groups + 4 if quant_dtype == "ccq-2.5" else 16 * groups + (groups + 1) // 2 + 12
    size = float(each * outputs)
    return [one() for _ in range(max(2, int(CYCLED_BYTES // size)))], size


def named(quant_dtype: str, group: int) -> str:
    """`int4/64`: groups of 64 inputs."""
    return f"{quant_dtype}/{group}" if group else quant_dtype


def product(quant_dtype: str, x: Any, weights: tuple[Sequence[Any], float], back: bool) -> Callable[[], float]:
    """Multiply with every matrix once; seconds of one product."""
    import paddle
    from erniecore_ops.functions import quantized_matmul, quantized_matmul_backward

    multiply = quantized_matmul_backward if back else quantized_matmul
    if quant_dtype == "float32":
        multiply = partial(paddle.matmul, transpose_y=back)
    some = weights[0] if x.shape[0] <= MANY_ROWS else weights[0][:2]

    def run() -> float:
        with paddle.no_grad():
            started = time.perf_counter()
            for weight in some:
                multiply(x, weight)
            return (time.perf_counter() - started) / len(some)

    return run


def in_turns(calls: dict[Any, Callable[[], float]], rounds: int) -> dict[Any, float]:
    """The lowest of each, A B C A B C …, as other processes only ever add."""
    found = {name: float("inf") for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name] = min(found[name], call())
    return found


class Memory:
    """The machine's memory: seconds of a copy of ``size`` bytes, and of a sum over as many, with the device's threads."""

    def __init__(self) -> None:
        import paddle
        from erniecore_ops.parallel import parallel_map, row_ranges

        self.map, self.pieces = parallel_map, row_ranges(64, 1 << 20, 1 << 24)
        self.source = paddle.ones([64, 1 << 20])
        self.target = paddle.empty_like(self.source)
        self.size = 4.0 * 64 * (1 << 20)

    def copy(self) -> float:
        """Seconds to read and write the buffer once."""
        import paddle

        return self._timed(lambda r: paddle.assign(self.source[r[0] : r[1]], output=self.target[r[0] : r[1]]))

    def read(self) -> float:
        """A sum of squares."""
        import paddle

        return self._timed(lambda r: paddle._C_ops.squared_l2_norm(self.source[r[0] : r[1]]))

    def _timed(self, work: Callable[[tuple[int, int]], Any]) -> float:
        started = time.perf_counter()
        self.map(work, self.pieces, self.source)
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
