"""``python -m benchmarks.tokenization``: conversations to training samples, against Hugging Face ``datasets.map`` with the
same tokenizer, template and number of workers, in turns A B A B …
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.compare import RUNNERS, environment_of
from benchmarks.large_data import make_model
from benchmarks.machine import describe, run_json
from benchmarks.texts import write_conversations

#: name -> options of the peer's runner
PEERS = {
    "hf-labels": ["--kind", "labels"],
    "hf-labels-sp": ["--kind", "labels", "--tokenizer", "sentencepiece"],
    "hf-ids": ["--kind", "ids"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=16, help="size of the file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        make_model(home)
        rows = write_conversations(home / "data.jsonl", args.mib << 20)
        common = ["--file", str(home / "data.jsonl"), "--model", str(home / "base"), "--workers", str(args.workers)]
        ours = [sys.executable, str(RUNNERS / "tokenize_ernie.py"), *common]
        theirs = [environment_of("hf"), str(RUNNERS / "tokenize_hf.py"), *common]
        found: dict[str, list[dict[str, Any]]] = {}
        for turn in range(args.rounds):
            commands = {"ernie": ours, **{name: [*theirs, *options] for name, options in PEERS.items()}}
            for name in commands if turn % 2 == 0 else reversed(commands):
                record = run_json(commands[name], {}, RUNNERS)
                print(json.dumps({"peer": name, **record}), flush=True)
                if "result" in record:
                    found.setdefault(name, []).append(record["result"])
    print(describe())
    print(f"{rows} rows, {args.mib} MiB, {args.workers} workers\n")
    print(table(found, args.mib))


def table(found: dict[str, list[dict[str, Any]]], size: float) -> str:
    """Medians; ratios are theirs over ours, of wall and of CPU seconds."""
    medians = {n: [statistics.median(r[k] for r in runs) for k in ("seconds", "cpu_s")] for n, runs in found.items()}
    lines = ["| system | seconds | MiB/s | CPU s | ours is × faster | × less CPU |", "|---|---|---|---|---|---|"]
    for name, (seconds, cpu) in medians.items():
        wall, processor = (theirs / ours for theirs, ours in zip((seconds, cpu), medians["ernie"], strict=True))
        lines.append(f"| {name} | {seconds:.1f} | {size / seconds:.2f} | {cpu:.1f} | {wall:.2f} | {processor:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
