"""``python -m benchmarks.large_data --gib 5``: how much memory a run needs for a file of that size.

Trains a tiny model for some steps, once on a small file in memory and once on the large one through the token cache, and
watches the memory of every process from outside. What the large run needs more is what the data cost. Needs about three
times the file's size on the disk below ``--dir``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.texts import write_conversations, write_text

SIZE = "hidden_size=32,intermediate_size=64,num_hidden_layers=1,num_attention_heads=4,num_key_value_heads=2,head_dim=8"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the file")
    parser.add_argument("--workers", type=int, default=2, help="data.workers")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--dir", type=Path, default=Path("benchmarks/results/large"), help="where everything is written"
    )
    parser.add_argument("--keep", action="store_true", help="leave the files there")
    args = parser.parse_args()
    home: Path = args.dir.resolve()
    home.mkdir(parents=True, exist_ok=True)
    make_model(home)
    small, large = home / "small.jsonl", home / "large.jsonl"
    write_conversations(small, 4 << 20)
    if not large.exists():
        write_conversations(large, int(args.gib * 2**30), seed=1)
    print(describe(), flush=True)
    for name, file, cache in (
        ("small, in memory", small, "off"),
        ("large, first run", large, str(home / "cache")),
        ("large, again", large, str(home / "cache")),
    ):
        print(json.dumps({"run": name, **train(home, file, cache, args.workers, args.steps)}), flush=True)
    if not args.keep:
        shutil.rmtree(home)


def make_model(home: Path) -> None:
    """A tiny model with a tokenizer of 8000 ids."""
    if (home / "base").exists():
        return
    text = write_text(home / "text.txt")
    for words in (
        ["tokenizer", "train", text, "--vocab-size", 8000, "--out", home / "tok"],
        ["model", "init", "--model", "ernie45", "--size", SIZE, "--tokenizer", home / "tok", "--out", home / "base"],
    ):
        subprocess.run([sys.executable, "-m", "erniecore", *map(str, words)], check=True, capture_output=True)


def train(home: Path, file: Path, cache: str, workers: int, steps: int) -> dict[str, Any]:
    """One run; its peaks, in MiB: ``anonymous`` and ``resident`` of the training process, of all workers together."""
    out = home / "run"
    shutil.rmtree(out, ignore_errors=True)
    words = ["run", "--model", home / "base", "--method", "sft", "--data", file, "--out", out]
    settings = {
        "train.max_steps": steps,
        "train.batch_size": 4,
        "data.max_seq_len": 1024,
        "data.cache": cache,
        "data.workers": workers,
        "checkpoint.export": "false",
        "log.report": "false",
    }
    command = [sys.executable, "-m", "erniecore", *words, *(f"{k}={v}" for k, v in settings.items())]
    started = time.time()
    process = subprocess.Popen([str(w) for w in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peaks = {"anonymous": 0.0, "resident": 0.0, "workers": 0.0}
    while process.poll() is None:
        anonymous, resident = memory(process.pid)
        peaks["anonymous"], peaks["resident"] = max(peaks["anonymous"], anonymous), max(peaks["resident"], resident)
        peaks["workers"] = max(peaks["workers"], sum(memory(child)[0] for child in children(process.pid)))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(process.stderr.read() if process.stderr else "the run failed")
    report = json.loads((out / "data_report.json").read_text(encoding="utf-8"))
    start = next(e for e in map(json.loads, (out / "events.jsonl").open(encoding="utf-8")) if e["event"] == "run_start")
    return {
        "file_mib": round(file.stat().st_size / 2**20),
        "rows": report["train"]["rows"],
        "samples": report["train"]["samples"],
        "fill_rate": round(report["fill_rate"], 4),
        "cache_mib": round(report["train"].get("cache", {}).get("bytes", 0) / 2**20),
        "seconds_to_first_step": round(start["time"] - started, 1),
        "seconds": round(time.time() - started, 1),
        **{f"{name}_mib": round(value) for name, value in peaks.items()},
    }


def memory(pid: int) -> tuple[float, float]:
    """(anonymous, resident) memory of a process now, MiB; zeros when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0, 0.0
    values = {
        name: float(rest.split()[0]) / 1024
        for name, _, rest in (line.partition(":") for line in lines)
        if " kB" in rest
    }
    return values.get("RssAnon", 0.0), values.get("VmRSS", 0.0)


def children(pid: int) -> list[int]:
    """Processes that ``pid`` started, and those that these did."""
    try:
        found = [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []
    return [*found, *(grandchild for child in found for grandchild in children(child))]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
