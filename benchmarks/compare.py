"""Peers in turns, A B A B …, on the same workloads; one table. Which peers: those whose environments exist."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import run_json, wait_until_quiet

HERE = Path(__file__).resolve().parent
RUNNERS = HERE / "peers"


@dataclass(frozen=True)
class Peer:
    """A system that is compared: its interpreter, runner and environment."""

    python: str
    runner: str
    env: dict[str, str] = field(default_factory=dict)


def environment_of(name: str) -> str:
    """Interpreter of a peer's environment: $ERNIE_BENCH_<NAME>, or benchmarks/peers/venv-<name>."""
    folder = Path(os.environ.get(f"ERNIE_BENCH_{name.upper()}", RUNNERS / f"venv-{name}"))
    return str(folder / "bin" / "python")


def installed_peers() -> dict[str, Peer]:
    """We, and everybody whose environment exists. ``pf-mkl5`` is PaddleFormers with MKL's AVX2 code chosen by hand."""
    peers = {
        "ernie": Peer(sys.executable, "run_ernie.py"),
        "hf": Peer(environment_of("hf"), "run_hf.py"),
        "pf": Peer(environment_of("pf"), "run_pf.py"),
        "pf-mkl5": Peer(environment_of("pf"), "run_pf.py", {"MKL_DEBUG_CPU_TYPE": "5"}),
    }
    return {name: peer for name, peer in peers.items() if Path(peer.python).exists()}


def run_case(name: str, peer: Peer, case: dict[str, Any], *more: str) -> dict[str, Any]:
    """One run of one peer."""
    steps, warmup = case["steps"].get(name.partition("-")[0], case["steps"]["*"])
    counts = ["--steps", str(steps), "--warmup", str(warmup)]
    return run_json([peer.python, str(RUNNERS / peer.runner), *case["args"], *counts, *more], peer.env, RUNNERS)


def measure(args: argparse.Namespace) -> str:
    """All chosen cases and peers; raw results go to peers.jsonl."""
    cases = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
    peers = installed_peers()
    chosen = {n: peers[n] for n in args.peers.split(",")} if args.peers else peers
    records = []
    with (args.out / "peers.jsonl").open("a", encoding="utf-8") as log:
        for turn in range(args.rounds):
            for case in args.cases.split(","):
                for name in list(chosen) if turn % 2 == 0 else reversed(list(chosen)):
                    wait_until_quiet()
                    record = {"case": case, "peer": name, **run_case(name, chosen[name], cases[case])}
                    records.append(record)
                    log.write(json.dumps(record) + "\n")
                    log.flush()
                    print(progress(record), flush=True)
    return table(records)


def progress(record: dict[str, Any]) -> str:
    """One line while measuring."""
    head = f"{record['case']:18s} {record['peer']:8s} others {record['others']:.2f}"
    if "result" not in record:
        return f"{head}  FAILED: {record['error'].splitlines()[-1][:120] if record['error'] else 'no output'}"
    r = record["result"]
    return f"{head}  {r['tokens_per_s']:9.1f} tokens/s  {r['cpu_s_per_step']:.2f} CPU s  {r['peak_rss_mb']:.0f} MB"


def table(records: list[dict[str, Any]]) -> str:
    """Medians over all steps of all turns; ratios are ours over theirs."""
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        grouped[record["case"], record["peer"]].append(record)
    speeds = {key: speed(found) for key, found in grouped.items()}
    lines = [
        "## Against other systems",
        "",
        "Medians over the steps of all turns; float32. `others`: share of the machine that other processes took.",
        "",
        "| case | system | tokens/s | step s | CPU s/step | peak RSS MB | GFLOP/s | ours is × faster | others |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (case, peer), found in grouped.items():
        results = [r["result"] for r in found if "result" in r]
        if not results:
            last = (found[0]["error"].splitlines() or ["no output"])[-1]
            lines.append(f"| {case} | {peer} | does not run: {last[:90]} | | | | | | |")
            continue
        ours, rate = speeds.get((case, "ernie")), speeds[case, peer] or 1.0
        ratio = "" if ours is None or peer == "ernie" else f"{ours / rate:.2f}"
        step = results[0]["tokens_per_step"] / rate
        cpu = statistics.median(r["cpu_s_per_step"] for r in results)
        gflops = results[0]["gflops"] * results[0]["step_s"] / step
        rss = max(r["peak_rss_mb"] for r in results)
        others = statistics.median(r["others"] for r in found)
        lines.append(
            f"| {case} | {peer} | {rate:,.0f} | {step:.3f} | {cpu:.2f} | {rss:,.0f} | {gflops:.0f} | {ratio} | {others:.2f} |"
        )
    return "\n".join(lines)


def speed(records: list[dict[str, Any]]) -> float | None:
    """Tokens per second at the median step."""
    results = [r["result"] for r in records if "result" in r]
    steps = [s for r in results for s in r["step_s_all"][len(r["step_s_all"]) - r["steps"] :]]
    return results[0]["tokens_per_step"] / statistics.median(steps) if steps else None
