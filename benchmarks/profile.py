"""Where the time of a training step goes, by operator: each is timed alone, at the workload's sizes, in the number of
calls that a step makes; what is left is linears (timed as one), the optimizer, and everything else.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.compare import HERE
from benchmarks.machine import run_json, wait_until_quiet

WORKLOADS = ("dense-S", "dense-M")


def measure(args: argparse.Namespace) -> str:
    """WritePlan of the step of each workload."""
    lines = ["## Where the time goes", ""]
    with (args.out / "profile.jsonl").open("a", encoding="utf-8") as log:
        for workload in WORKLOADS:
            wait_until_quiet()
            command = [sys.executable, str(HERE / "peers" / "profile_ernie.py"), "--workload", workload]
            record = run_json(command, {}, HERE / "peers")
            log.write(json.dumps(record) + "\n")
            result = record["result"]
            total = result["step_ms"]
            lines += [
                f"{workload}: {total:.0f} ms a step.",
                "",
                "| part | calls | ms forward + backward | share |",
                "|---|---|---|---|",
            ]
            for name, part in result["parts"].items():
                lines.append(f"| {name} | {part['calls']} | {part['ms']:.1f} | {part['ms'] / total:.0%} |")
            rest = total - sum(part["ms"] for part in result["parts"].values())
            lines += [f"| everything else | | {rest:.1f} | {rest / total:.0%} |", ""]
    return "\n".join(lines).rstrip()
