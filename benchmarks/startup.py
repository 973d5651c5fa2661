"""How long commands take that do not train: help, the list of plugins, a mistake in the settings."""

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

TIMES = 7


def commands(folder: Path) -> dict[str, list[str]]:
    """Name -> arguments of ``ernie``."""
    broken = folder / "broken.yaml"
    broken.write_text("method: sft\ntrain:\n  learning_rat: 1.0e-4\n", encoding="utf-8")
    return {"ernie --help": ["--help"], "ernie plugins": ["plugins"], "a misspelt key": ["run", str(broken)]}


def measure(args: argparse.Namespace) -> str:
    """Median wall and CPU seconds of each, with a warm file cache."""
    script = Path(sys.executable).parent / "ernie"
    rows = []
    with tempfile.TemporaryDirectory() as folder, (args.out / "startup.jsonl").open("a", encoding="utf-8") as log:
        for name, arguments in commands(Path(folder)).items():
            wall, cpu, code = [], [], 0
            for _ in range(TIMES + 1):
                started, before = time.perf_counter(), os.times()
                code = subprocess.run([script, *arguments], capture_output=True, cwd=folder, check=False).returncode
                after = os.times()
                wall.append(time.perf_counter() - started)
                cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
            seconds, work = statistics.median(wall[1:]), statistics.median(cpu[1:])
            log.write(json.dumps({"command": name, "exit": code, "wall_s": wall[1:], "cpu_s": cpu[1:]}) + "\n")
            rows.append(f"| {name} | {code} | {seconds:.2f} | {work:.2f} |")
    head = ["## Start", "", "| command | exit code | s | CPU s |", "|---|---|---|---|"]
    return "\n".join(head + rows)
