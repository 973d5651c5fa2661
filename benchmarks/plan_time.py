"""``python -m benchmarks.plan_time [NAMES…]``: planned against measured seconds of training steps on the CPU, one thread per
process, and the share of pairs of layouts whose order by time the plan has right.

First `ernie bench` measures operators, collectives, and steps of a few runs of other sizes than those that are planned. Then
all cases run in turns, ``--rounds`` times, each in fresh processes; the median of their steps counts. Samples are as long as
rows, as plans assume. Runs of one process are timed by the seconds that it ran (``--clock wall`` for the clock on the wall,
for a quiet machine), layouts by the clock on the wall. Prints JSON lines, a table in Markdown, and the share of pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.plan_memory import MODELS as PLANNED

OTHER = "hidden_size=320,intermediate_size=832,num_hidden_layers=3,num_attention_heads=10,num_key_value_heads=2"
OTHER += ",vocab_size=3072,max_position_embeddings=16384"
MOE = f"{OTHER},moe_num_experts=8,moe_k=2,moe_intermediate_size=192,moe_num_shared_experts=1"
MOE += ",moe_layer_start_index=1,moe_layer_end_index=2,num_nextn_predict_layers=0"
LARGER = OTHER.replace("hidden_size=320", "hidden_size=640").replace("vocab_size=3072", "vocab_size=12288")
MODELS = {**PLANNED, "other": ("ernie45", OTHER), "other-moe": ("ernie45-moe", MOE), "larger": ("ernie45", LARGER)}

#: model, method, row length, words
Case = tuple[str, str, int, str]
#: steps from which plans learn
LEARNED: dict[str, Case] = {
    "other-1536x2": ("other", "sft", 1536, "train.batch_size=2"),
    "other-256x2": ("other", "sft", 256, "train.batch_size=2"),
    "other-4096x1-full": ("other", "sft", 4096, "train.recompute=full"),
    "other-lora-768x2": ("other", "sft", 768, "--adapter lora train.batch_size=2"),
    "other-dpo-768x2": ("other", "dpo", 768, "train.batch_size=2"),
    "other-moe-768x2": ("other-moe", "sft", 768, "train.batch_size=2"),
    "other-moe-lora-1536x1": ("other-moe", "sft", 1536, "--adapter lora"),
    "larger-512x2": ("larger", "sft", 512, "train.batch_size=2"),
}
#: steps that are planned
CASES: dict[str, Case] = {
    "dense-512x4": ("dense", "sft", 512, "train.batch_size=4"),
    "dense-2048x2": ("dense", "sft", 2048, "train.batch_size=2"),
    "dense-2048x2-full": ("dense", "sft", 2048, "train.batch_size=2 train.recompute=full"),
    "dense-1024x1-accumulate": ("dense", "sft", 1024, "train.accumulation=4"),
    "dense-8192x1": ("dense", "sft", 8192, ""),
    "dense-8192x1-full": ("dense", "sft", 8192, "train.recompute=full"),
    "dense-lora-2048x2": ("dense", "sft", 2048, "--adapter lora train.batch_size=2"),
    "dense-dpo-1024x2": ("dense", "dpo", 1024, "train.batch_size=2"),
    "dense-dpo-lora-1024x2": ("dense", "dpo", 1024, "--adapter lora train.batch_size=2"),
    "wide-1024x2": ("wide", "sft", 1024, "train.batch_size=2"),
    "moe-512x4": ("moe", "sft", 512, "train.batch_size=4"),
    "moe-2048x1": ("moe", "sft", 2048, ""),
    "moe-2048x2-full": ("moe", "sft", 2048, "train.batch_size=2 train.recompute=full"),
    "moe-lora-1024x2": ("moe", "sft", 1024, "--adapter lora train.batch_size=2"),
    "moe-dpo-1024x1": ("moe", "dpo", 1024, ""),
}
#: of two processes with one thread each, and one alone: model, row length, degrees; all have as many rows per step
LAYOUTS: dict[str, tuple[str, int, str]] = {
    "alone": ("dense", 1024, ""),
    "data": ("dense", 1024, "parallel.data=2"),
    "sharding-stage1": ("dense", 1024, "parallel.sharding=2"),
    "sharding-stage2": ("dense", 1024, "parallel.sharding=2 parallel.sharding_stage=2"),
    "sharding-stage3": ("dense", 1024, "parallel.sharding=2 parallel.sharding_stage=3"),
    "tensor": ("dense", 1024, "parallel.tensor=2"),
    "pipeline": ("dense", 1024, "parallel.pipeline=2"),
    "context": ("dense", 1024, "parallel.context=2"),
    "wide-data": ("wide", 256, "parallel.data=2"),
    "wide-tensor": ("wide", 256, "parallel.tensor=2"),
    "wide-pipeline": ("wide", 256, "parallel.pipeline=2"),
}
ROWS = 4
RANK = Path(__file__).with_name("layout_rank.py")


def ernie(home: Path, cache: str, *words: str) -> Any:
    """What one ``ernie`` command prints, from JSON; what is measured and planned with is in ``cache``."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(home / cache)}
    command = [sys.executable, "-m", "erniecore", *words, "--json"]
    done = subprocess.run(command, cwd=home, stdout=subprocess.PIPE, text=True, env=environ)
    if done.returncode:  # with --json, what is wrong stands in the standard output
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}")
    return json.loads(done.stdout)


def make(home: Path, lengths: Sequence[int]) -> None:
    """A tokenizer, models, and per row length data whose samples fill rows; pairs fill half a row each."""
    from erniecore import load_tokenizer

    draw = random.Random(1)
    text = " ".join(str(draw.randrange(1000)) for _ in range(40_000))
    lines = [{"instruction": "go", "output": text[start : start + 300]} for start in range(0, 60_000, 300)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    words = [
        sys.executable,
        "-m",
        "erniecore",
        "tokenizer",
        "train",
        "rows.jsonl",
        "--vocab-size",
        "296",
        "--out",
        "tok",
    ]
    subprocess.run(words, cwd=home, check=True, stdout=subprocess.DEVNULL)
    for name, (plugin, size) in MODELS.items():
        words = ["model", "init", "--model", plugin, "--size", size, "--tokenizer", "tok", "--out", name]
        subprocess.run([sys.executable, "-m", "erniecore", *words], cwd=home, check=True, stdout=subprocess.DEVNULL)
    per_token = len(text) / len(load_tokenizer(home / "dense").encode(text))
    for length in lengths:
        whole, half = (int((size - 24) * per_token) for size in (length, length // 2))
        starts = [draw.randrange(len(text) - whole) for _ in range(160)]
        rows = [{"instruction": "go", "output": text[at : at + whole]} for at in starts]
        pairs = [
            {"instruction": "go", "chosen": text[at : at + half], "rejected": text[at + 9 : at + 9 + half]}
            for at in starts
        ]
        (home / f"sft-{length}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (home / f"dpo-{length}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))


def words_of(case: Case) -> list[str]:
    """Of `ernie run`, `plan` and `bench train`."""
    model, method, length, words = case
    data = f"{method}-{length}.jsonl"
    return ["--method", method, "--model", model, "--data", data, f"data.max_seq_len={length}", *words.split()]


def calibrate(home: Path, steps: int, rounds: int) -> None:
    """Operators, collectives and steps of other runs."""
    ernie(home, "known", "bench", "operators", "--rounds", str(rounds))
    ernie(home, "known", "bench", "comm", "--nproc", "2")
    for case in LEARNED.values():
        ernie(home, "known", "bench", "train", *words_of(case), "--steps", str(steps))


def measured(home: Path, case: Case, steps: int, clock: str) -> list[float]:
    """Seconds of each step of full rows."""
    found = ernie(home, "unused", "bench", "train", *words_of(case), "--steps", str(steps))
    return [found["full"] * seconds for seconds in found["seconds" if clock == "cpu" else "wall"]]


def layout_words(home: Path, name: str) -> list[str]:
    """Of the run of a layout."""
    model, length, degrees = LAYOUTS[name]
    replicas = 2 if any(axis in degrees for axis in ("data", "sharding")) else 1
    words = [f"model.name={MODELS[model][0]}", f"model.path={home / model}", "method.name=sft"]
    words += [f"data.train={home / f'sft-{length}.jsonl'}", f"data.max_seq_len={length}"]
    words += [f"train.accumulation={ROWS // replicas}", "log.report=false", "checkpoint.export=false"]
    return [*words, "checkpoint.final=false", *(["parallel.name=hybrid", *degrees.split()] if degrees else [])]


def measured_layout(home: Path, name: str, steps: int) -> list[float]:
    """Seconds of each step of full rows, by the clock on the wall."""
    from erniecore_conformance.processes import on_ranks

    count = 2 if LAYOUTS[name][2] else 1
    with tempfile.TemporaryDirectory() as out:
        words = [*layout_words(home, name), f"run.out={out}/run", f"train.max_steps={steps + 3}"]
        refused = next((text for _, text in on_ranks(count, f"{RANK}:ran", words, limit=1500.0) if text), "")
        assert not refused, refused
        lines = (Path(out) / "run" / "events.jsonl").read_text().splitlines()
    found = [event for event in map(json.loads, lines) if event["event"] == "step"][3:]
    return [ROWS * LAYOUTS[name][1] / event["tokens"] * event["seconds"] for event in found]


def ordered(rows: Sequence[Mapping[str, Any]], apart: float = 1.0) -> tuple[int, int]:
    """(pairs in the right order, pairs) of those whose measured times are ``apart``."""
    pairs = [
        (a, b)
        for a, b in combinations(rows, 2)
        if max(a["measured"], b["measured"]) >= apart * min(a["measured"], b["measured"])
    ]
    right = sum((a["planned"] < b["planned"]) == (a["measured"] < b["measured"]) for a, b in pairs)
    return right, len(pairs)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as a Markdown table."""
    lines = ["| run | planned | measured | planned / measured |", "|---|---|---|---|"]
    for row in rows:
        ratio = row["planned"] / row["measured"]
        lines.append(f"| {row['case']} | {row['planned']:.3f} s | {row['measured']:.3f} s | {ratio:.2f} |")
    ratios = [row["planned"] / row["measured"] for row in rows]
    within = sum(0.75 <= ratio <= 1.25 for ratio in ratios)
    right, pairs = ordered(rows)
    order = f"order of pairs: {right} of {pairs} ({right / max(pairs, 1):.0%})"
    lines.append(f"\n{within} of {len(rows)} within 25 %, {min(ratios):.2f} to {max(ratios):.2f}; {order}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="some of the cases (default: all)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument(
        "--keep", type=Path, help="directory for models, data and measurements; used again if it is there"
    )
    args = parser.parse_args()
    names = args.names or [*CASES, *LAYOUTS]
    with tempfile.TemporaryDirectory() as directory:
        home = args.keep or Path(directory)
        home.mkdir(exist_ok=True, parents=True)
        if not (home / "known").exists():
            make(home, sorted({case[2] for case in (*LEARNED.values(), *CASES.values())} | {256, 1024}))
            calibrate(home, args.steps, args.rounds * 5)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name in names:
                if name in CASES:
                    seconds[name] += measured(home, CASES[name], args.steps, args.clock)
                else:
                    seconds[name] += measured_layout(home, name, args.steps)
        for kind in (CASES, LAYOUTS):
            rows = []
            for name in (name for name in names if name in kind):
                words = words_of(CASES[name]) if name in CASES else layout_words(home, name)
                plan = ernie(home, "known", "plan", *words)["estimate"]
                rows.append({"case": name, "planned": plan["step_seconds"], "measured": median(seconds[name])})
                print(json.dumps({**rows[-1], "step": plan["stage_times"] or plan["operators"]}), flush=True)
            if rows:
                print(f"{table(rows)}\n", flush=True)


if __name__ == "__main__":
    main()
