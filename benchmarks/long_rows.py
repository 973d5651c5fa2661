"""Memory and time of training steps on one row, by its length: ``python -m benchmarks.long_rows [--lengths 2048,…,32768]``.

A process per length runs one step of the workload ``long``. Memory that grows with the length and no faster has the same
bytes per token in every row of the table. ``--recompute`` adds a column with full recomputation, which keeps the input of
each layer only.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.compare import HERE
from benchmarks.machine import run_json

LENGTHS = "2048,4096,8192,16384,32768"


def measure(length: int, *more: str) -> dict[str, float]:
    """Peak memory of the process and of its tensors, CPU seconds of the step."""
    words = ["--workload", "long", "--steps", "1", "--warmup", "0", "--opt", f"seq={length}", *more]
    record = run_json([sys.executable, str(HERE / "peers" / "run_ernie.py"), *words], {}, HERE / "peers")
    if "result" not in record:
        raise SystemExit(record["error"])
    result: dict[str, float] = record["result"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default=LENGTHS)
    parser.add_argument("--recompute", action="store_true")
    args = parser.parse_args()
    again = "| with recomputation MB " if args.recompute else ""
    print(f"| length | peak RSS MB | peak of tensors MB | KB per token | CPU s {again}|")
    print("|---|---|---|---|---|---|" if args.recompute else "|---|---|---|---|---|")
    for length in (int(word) for word in args.lengths.split(",")):
        found = measure(length)
        tensors = found["peak_tensors_mb"]
        line = f"| {length:,} | {found['peak_rss_mb']:,.0f} | {tensors:,.0f} | {tensors * 1024 / length:.0f} "
        line += f"| {found['cpu_s_per_step']:.1f} |"
        if args.recompute:
            line += f" {measure(length, '--recompute')['peak_tensors_mb']:,.0f} |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
