"""What the installed kernels bring: training and decoding with them, without them, and without one at a time, in turns."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.compare import HERE
from benchmarks.machine import run_json, wait_until_quiet

#: workload, method, measured turns
CASES = (
    ("dense-S", "sft", 5),
    ("moe-S", "sft", 5),
    ("decode-b1", "generate", 5),
    ("decode-b8", "generate", 3),
    ("decode-moe-b1", "generate", 5),
    ("decode-moe-b8", "generate", 3),
)


def measure(args: argparse.Namespace) -> str:
    """One row per workload: ratios of wall and CPU seconds."""
    rows: list[str] = []
    operators: list[str] = []
    with (args.out / "kernels.jsonl").open("a", encoding="utf-8") as log:
        for workload, method, turns in CASES:
            wait_until_quiet()
            words = ["--workload", workload, "--method", method, "--steps", str(turns), "--warmup", "1"]
            record = run_json([sys.executable, str(HERE / "peers" / "kernels_ernie.py"), *words], {}, HERE / "peers")
            log.write(json.dumps(record) + "\n")
            result = record["result"]
            operators = [name.partition(" ")[2] for name in result["variants"] if name.startswith("without ")]
            rows.append(row(f"{method} {workload}", result, record["others"]))
    head = [
        "## Kernels",
        "",
        "Time without kernels over time with them; for one kernel, time without it over time with all. wall (CPU).",
        "",
        f"| case | tokens/s without → with | all | {' | '.join(operators)} | others |",
        f"|---|---|---|{'---|' * len(operators)}---|",
    ]
    return "\n".join([*head, *rows])


def row(case: str, result: dict[str, Any], others: float) -> str:
    """One line of the table."""
    variants, tokens = result["variants"], result["tokens"]
    base, best = variants["reference"], variants["kernels"]
    ratios = [ratio(base, best)]
    ratios += [ratio(found, best) for name, found in variants.items() if name.startswith("without ")]
    speeds = f"{tokens / base['wall_s']:,.0f} → {tokens / best['wall_s']:,.0f}"
    return f"| {case} | {speeds} | {' | '.join(ratios)} | {others:.2f} |"


def ratio(slow: dict[str, float], fast: dict[str, float]) -> str:
    """Wall and CPU seconds of one over those of the other."""
    return f"{slow['wall_s'] / fast['wall_s']:.2f} ({slow['cpu_s'] / fast['cpu_s']:.2f})"
