"""How the step time of a mixture of experts grows with the number of experts when each token still visits as many."""

from __future__ import annotations

import argparse
import json

from benchmarks.compare import HERE, installed_peers, run_case
from benchmarks.machine import wait_until_quiet

COUNTS = (8, 16, 32, 64, 128)


def measure(args: argparse.Namespace) -> str:
    """moe-S with 8 … 128 experts of one size, 4 per token."""
    case = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))["sft-moe-S"]
    rows, first = [], 0.0
    with (args.out / "experts.jsonl").open("a", encoding="utf-8") as log:
        for count in COUNTS:
            wait_until_quiet()
            record = {"experts": count, **run_case("ernie", installed_peers()["ernie"], case, "--experts", str(count))}
            log.write(json.dumps(record) + "\n")
            result = record["result"]
            first = first or result["step_s"]
            rows.append(
                f"| {count} | {result['num_parameters'] / 1e6:.1f} | {result['step_s']:.3f} | "
                f"{result['step_s'] / first:.2f} | {result['cpu_s_per_step']:.2f} | {result['peak_rss_mb']:,.0f} |"
            )
    head = [
        "## Number of experts",
        "",
        "moe-S, 4 experts per token whatever their number; the step includes the optimizer over all parameters.",
        "",
        "| experts | parameters, millions | step s | × the first | CPU s/step | peak RSS MB |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(head + rows)
