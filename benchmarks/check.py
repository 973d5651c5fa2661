"""Throughput of ``ernie data check`` without a model on one core: made-up rows of the usual formats and sizes."""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from erniecore_data.checking import check

from erniecore.api.rows import Source

TIMES = 3
BYTES = 24 << 20
_WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "that",
    "for",
    "it",
    "was",
    "with",
    "be",
    "by",
    "not",
    "his",
    "are",
    "this",
    "have",
)

Row = dict[str, Any]


def _text(rng: random.Random, characters: int) -> str:
    words = rng.choices(_WORDS, k=characters // 4)
    return " ".join(words)[:characters].strip() + ".\n"


def _chinese(rng: random.Random, characters: int) -> str:
    return "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(characters))


def _talk(rng: random.Random, turns: int, characters: int, text: Callable[[random.Random, int], str] = _text) -> Row:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text(rng, characters)} for i in range(turns)]}


def _calls(rng: random.Random) -> Row:
    call = {"name": "find", "arguments": {"what": _text(rng, 40), "limit": 3}}
    row = _talk(rng, 4, 250)
    row["messages"][1:1] = [
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": json.dumps({"found": _text(rng, 200)})},
    ]
    schema = {"type": "object", "properties": {"what": {"type": "string", "description": _text(rng, 60)}}}
    return {**row, "tools": [{"type": "function", "function": {"name": "find", "parameters": schema}}]}


def _pair(rng: random.Random) -> Row:
    answers = {side: [{"role": "assistant", "content": _text(rng, 1800)}] for side in ("chosen", "rejected")}
    return {"prompt": [{"role": "user", "content": _text(rng, 400)}], **answers}


#: name -> a row from a random stream
ROWS: dict[str, Callable[[random.Random], Row]] = {
    "alpaca, 170 bytes": lambda r: {"instruction": _text(r, 50), "input": "", "output": _text(r, 60)},
    "alpaca, 800 bytes": lambda r: {"instruction": _text(r, 150), "input": "", "output": _text(r, 600)},
    "messages, 2 turns": lambda r: _talk(r, 2, 500),
    "messages, 20 short turns": lambda r: _talk(r, 20, 60),
    "messages, Chinese": lambda r: _talk(r, 4, 100, _chinese),
    "messages with tools": _calls,
    "preference": _pair,
    "text": lambda r: {"text": _text(r, 4000)},
}


def _write(folder: Path, name: str) -> dict[str, Path]:
    """Files of one kind of row by their label."""
    rng = random.Random(name)
    some = [json.dumps(ROWS[name](rng), ensure_ascii=False) for _ in range(400)]
    count = max(1, BYTES // sum(len(row.encode()) + 1 for row in some))
    lines = folder / "rows.jsonl"
    lines.write_text("".join(row + "\n" for row in some) * count, encoding="utf-8")
    files = {f"{name}, .jsonl": lines}
    if name == "messages, 2 turns":
        files[f"{name}, .json"] = folder / "rows.json"
        files[f"{name}, .json"].write_text("[\n" + ",\n".join(some * count) + "\n]\n", encoding="utf-8")
        files[f"{name}, .jsonl.gz"] = folder / "packed.jsonl.gz"
        files[f"{name}, .jsonl.gz"].write_bytes(gzip.compress(lines.read_bytes(), 6))
        files[f"{name}, .parquet"] = folder / "rows.parquet"
        _parquet([json.loads(row) for row in some] * count, files[f"{name}, .parquet"])
    return files


def _parquet(rows: list[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def measure(args: argparse.Namespace) -> str:
    """Best CPU seconds of several passes; a megabyte is 10**6 bytes of the rows as JSON Lines, however they are stored."""
    rows = []
    with (args.out / "check.jsonl").open("a", encoding="utf-8") as log:
        for name in ROWS:
            with tempfile.TemporaryDirectory() as folder:
                files = _write(Path(folder), name)
                size = (Path(folder) / "rows.jsonl").stat().st_size
                for label, file in files.items():
                    seconds, count = _time(file)
                    log.write(json.dumps({"rows": label, "bytes": size, "count": count, "cpu_s": seconds}) + "\n")
                    rate = size / min(seconds) / 1e6
                    rows.append(f"| {label} | {size // count} | {count / min(seconds):.0f} | {rate:.0f} |")
    head = [
        "## `ernie data check` without a model, one core",
        "",
        "| rows | bytes per row | rows/s | MB/s |",
        "|---|---|---|---|",
    ]
    return "\n".join(head + rows)


def _time(file: Path) -> tuple[list[float], int]:
    seconds, count = [], 0
    for _ in range(TIMES):
        before = time.process_time()
        _, statistics = check([Source(path=str(file))])
        seconds.append(time.process_time() - before)
        count = statistics.total("kept")
        if count != statistics.total("rows"):
            raise SystemExit(f"{file}: {statistics.summary()}")
    return seconds, count
