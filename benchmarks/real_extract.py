"""The row ``extract`` of ``benchmarks.real_sizes``: a smaller model out of a model, by real commands. How long choosing its
experts on texts takes, how fast its files are written, the memory of both, and whether what was written plans and writes a token.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.real_models import weight_bytes
from benchmarks.watched import MIB

if TYPE_CHECKING:
    from benchmarks.real_sizes import Bench

#: rows of the training data on which the use of experts is measured
ROWS = 4


def extract(bench: Bench) -> Iterator[dict[str, Any]]:
    """Experts chosen by their use on texts, then the files: MB of new ones per second; with kills, their bytes compared; then the
    plan and the first token of the smaller model."""
    from benchmarks.real_sizes import base_row, generate

    source, out, part = bench.source(), bench.home / "extracted", bench.size.part
    shutil.rmtree(out, ignore_errors=True)
    if "--experts" in part:
        yield measure(bench, source)
    words = ["extract", source, *part, "--usage", bench.home / "usage", "--json"]
    done = bench.good(*words, "--out", out)
    found, written = done.last_json(), weight_bytes(out)
    row = {**base_row(f"extract {' '.join(part)}", done), "mb": round(written / 1e6)}
    row |= {"of_mb": round(weight_bytes(source) / 1e6), "mb_per_s": round(written / 1e6 / done.wall, 1)}
    yield {**row, "parameters": found["parameters"], **killed(bench, words, out, done.wall)}
    planned = bench.good("plan", "--model", out, "--method", "sft", "--adapter", "lora", "--json")
    estimate: Any = planned.last_json()["estimate"]
    yield {**base_row("plan of the smaller model", planned), "planned_mib": round(estimate["process_memory"] / MIB)}
    done, said = generate(bench, out, 8, 1)
    yield {**base_row("first token of the smaller model", done), "tokens": said["new_tokens"]}


def measure(bench: Bench, source: Path) -> dict[str, Any]:
    """The use of experts on some rows; it is kept, as an elastic run keeps it."""
    from erniecore_elastic.usage import write_usage

    from benchmarks.real_sizes import base_row

    texts = bench.home / "usage.jsonl"
    lines = (bench.home / "rows.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    texts.write_text("".join(lines[:ROWS]), encoding="utf-8")
    words = ["extract", source, *bench.size.part, "--data", texts, "--method", "sft", "--max-seq-len", bench.length]
    done = bench.good(*words, "--dry-run", "--json", "--out", bench.home / "nothing")
    kept: Any = done.last_json()["experts"]
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (bench.home / "usage").mkdir(exist_ok=True)
    rows = [[float(number in row) for number in range(config["moe_num_experts"])] for row in kept]
    write_usage(bench.home / "usage", 1, rows)
    return {**base_row(f"experts by their use on {ROWS} rows", done), "rows_of_experts": len(rows)}


def killed(bench: Bench, words: list[Any], out: Path, seconds: float) -> dict[str, Any]:
    """The same directory under ``bench.kills`` kills on the way."""
    from benchmarks.real_sizes import same_weights

    if not bench.kills:
        return {}
    again = bench.home / "extracted-killed"
    shutil.rmtree(again, ignore_errors=True)
    for n in range(bench.kills):
        bench.run(*words, "--out", again, kill_after=seconds * (n + 1) / (bench.kills + 1))
    bench.good(*words, "--out", again)
    equal = same_weights(out, again)
    shutil.rmtree(again)
    return {"killed": bench.kills, "bytes_equal": equal}
