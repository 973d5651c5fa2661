"""How long commands take that do not train: help, the list of plugins, a mistake in the settings, a device that is not here.

``python -m benchmarks.startup [--peers ernie,pf]``; with peers, also the time to the first training step of each
(``first_step.py``), in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.first_step import compare, own_environment
from benchmarks.machine import describe

TIMES = 7


def commands(folder: Path) -> dict[str, list[str]]:
    """Name -> arguments of ``ernie``."""
    broken = folder / "broken.yaml"
    broken.write_text("method: sft\ntrain:\n  learning_rat: 1.0e-4\n", encoding="utf-8")
    absent = [
        "run",
        "method.name=sft",
        "model.name=ernie45",
        "model.size=tiny",
        "--data",
        "none.jsonl",
        "--device",
        "xpu",
    ]
    return {
        "ernie --help": ["--help"],
        "ernie plugins": ["plugins"],
        "a misspelt key": ["run", str(broken)],
        "--device xpu without one": absent,
    }


def measure(args: argparse.Namespace) -> str:
    """Median wall and CPU seconds of each, with a warm file cache."""
    script = Path(sys.executable).parent / "ernie"
    rows = []
    with tempfile.TemporaryDirectory() as folder, (args.out / "startup.jsonl").open("a", encoding="utf-8") as log:
        for name, arguments in commands(Path(folder)).items():
            wall, cpu, code = [], [], 0
            for _ in range(TIMES + 1):
                started, before = time.perf_counter(), os.times()
                done = subprocess.run([script, *arguments], capture_output=True, cwd=folder, env=own_environment())
                code = done.returncode
                after = os.times()
                wall.append(time.perf_counter() - started)
                cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
            seconds, work = statistics.median(wall[1:]), statistics.median(cpu[1:])
            log.write(json.dumps({"command": name, "exit": code, "wall_s": wall[1:], "cpu_s": cpu[1:]}) + "\n")
            rows.append(f"| {name} | {code} | {seconds:.2f} | {work:.2f} |")
    head = ["## Start", "", "| command | exit code | s | CPU s |", "|---|---|---|---|"]
    return "\n".join(head + rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="", help="some of ernie,pf,pf-cli: compare the time to the first step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print(describe(), measure(args), sep="\n\n", flush=True)
    if args.peers:
        with tempfile.TemporaryDirectory() as folder:
            print("", compare(args.peers.split(","), args.rounds, Path(folder), args.out / "startup.jsonl"), sep="\n")


if __name__ == "__main__":
    main()
