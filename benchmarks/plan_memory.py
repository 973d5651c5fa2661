"""``python -m benchmarks.plan_memory [NAMES…]``: planned against measured peak memory of training runs on the CPU.

Tensors are compared with what paddle's allocator counted, the process with what the operating system did. Each run is a
process of its own, because both only tell the highest value ever. Rows of the data are full, as the plan assumes. Prints
one JSON line per run, and at the end how far the plans were off.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SIZE = "hidden_size=256,intermediate_size=768,num_hidden_layers=4,num_attention_heads=8,num_key_value_heads=2"
DENSE = f"{SIZE},head_dim=64,vocab_size=4096,max_position_embeddings=16384"
WIDE = DENSE.replace("vocab_size=4096", "vocab_size=32768")
MOE = f"{SIZE},vocab_size=4096,max_position_embeddings=16384,moe_num_experts=16,moe_k=4,moe_intermediate_size=128"
MOE += ",moe_num_shared_experts=2,moe_layer_start_index=1,moe_layer_end_index=3,num_nextn_predict_layers=0"
MODELS = {"dense": ("ernie45", DENSE), "wide": ("ernie45", WIDE), "moe": ("ernie45-moe", MOE)}

RANK = Path(__file__).with_name("layout_rank.py")
#: steps of a run: the heap has grown by then
STEPS = 12

#: name -> (model, method, words)
CASES: dict[str, tuple[str, str, str]] = {
    "dense-512x4": ("dense", "sft", "data.max_seq_len=512 train.batch_size=4"),
    "dense-2048x2": ("dense", "sft", "data.max_seq_len=2048 train.batch_size=2"),
    "dense-2048x2-full": ("dense", "sft", "data.max_seq_len=2048 train.batch_size=2 train.recompute=full"),
    "dense-2048x2-attention": ("dense", "sft", "data.max_seq_len=2048 train.batch_size=2 train.recompute=attention"),
    "dense-1024x1-accumulate": ("dense", "sft", "data.max_seq_len=1024 train.accumulation=4"),
    "dense-8192x1": ("dense", "sft", "data.max_seq_len=8192"),
    "dense-1024x2-ema": ("dense", "sft", "data.max_seq_len=1024 train.batch_size=2 train.ema=0.99"),
    "dense-lora-2048x2": ("dense", "sft", "--adapter lora data.max_seq_len=2048 train.batch_size=2"),
    "dense-lora-2048x2-full": ("dense", "sft", "--adapter lora data.max_seq_len=2048 train.batch_size=2 train.recompute=full"),
    "dense-dpo-1024x2": ("dense", "dpo", "data.max_seq_len=1024 train.batch_size=2"),
    "dense-dpo-lora-1024x2": ("dense", "dpo", "--adapter lora data.max_seq_len=1024 train.batch_size=2"),
    "wide-1024x2": ("wide", "sft", "data.max_seq_len=1024 train.batch_size=2"),
    "wide-1024x2-one-piece": ("wide", "sft", "data.max_seq_len=1024 train.batch_size=2 train.loss_chunk=2048"),
    "moe-512x4": ("moe", "sft", "data.max_seq_len=512 train.batch_size=4"),
    "moe-2048x1": ("moe", "sft", "data.max_seq_len=2048"),
    "moe-2048x2-full": ("moe", "sft", "data.max_seq_len=2048 train.batch_size=2 train.recompute=full"),
    "moe-lora-1024x2": ("moe", "sft", "--adapter lora data.max_seq_len=1024 train.batch_size=2"),
    "moe-dpo-1024x1": ("moe", "dpo", "data.max_seq_len=1024"),
}  # fmt: skip
#: two processes
_TWO = "parallel.name=hybrid"
LAYOUTS: dict[str, tuple[str, str, str]] = {
    "dense-2048x2-tensor": ("dense", "sft", f"data.max_seq_len=2048 train.batch_size=2 {_TWO} parallel.tensor=2"),
    "dense-2048x2-sequence": (
        "dense", "sft", f"data.max_seq_len=2048 train.batch_size=2 {_TWO} parallel.tensor=2 parallel.sequence=true"),
    "dense-1024x1-pipeline": ("dense", "sft", f"data.max_seq_len=1024 train.accumulation=4 {_TWO} parallel.pipeline=2"),
    "dense-8192x1-context": ("dense", "sft", f"data.max_seq_len=8192 {_TWO} parallel.context=2"),
    "dense-8192x1-ring": (
        "dense", "sft", f"data.max_seq_len=8192 {_TWO} parallel.context=2 parallel.context_attention=ring"),
    "dense-2048x1-data": ("dense", "sft", f"data.max_seq_len=2048 {_TWO} parallel.data=2"),
    "wide-1024x1-sharding": ("wide", "sft", f"data.max_seq_len=1024 {_TWO} parallel.sharding=2"),
    "wide-1024x1-sharding-stage2": (
        "wide", "sft", f"data.max_seq_len=1024 {_TWO} parallel.sharding=2 parallel.sharding_stage=2"),
    "wide-1024x1-sharding-stage3": (
        "wide", "sft", f"data.max_seq_len=1024 {_TWO} parallel.sharding=2 parallel.sharding_stage=3"),
    "moe-1024x1-expert": ("moe", "sft", f"data.max_seq_len=1024 {_TWO} parallel.data=2 parallel.expert=2"),
}  # fmt: skip


def ernie(*words: str, cwd: Path) -> str:
    """Output of one ``ernie`` command; raises ``CalledProcessError`` with its words on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "erniecore", *words], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def make(home: Path) -> None:
    """Data whose answers are long, a tokenizer, and the models."""
    draw = random.Random(1)
    numbers = [" ".join(str(draw.randrange(1000)) for _ in range(60)) for _ in range(1500)]
    rows = [{"instruction": "go", "output": text} for text in numbers]
    pairs = [
        {"instruction": "go", "chosen": a, "rejected": b} for a, b in zip(numbers[::2], numbers[1::2], strict=True)
    ]
    for name, found in (("rows", rows), ("pairs", pairs)):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    ernie("tokenizer", "train", "rows.jsonl", "--vocab-size", "296", "--out", "tok", cwd=home)
    for name, (plugin, size) in MODELS.items():
        ernie("model", "init", "--model", plugin, "--size", size, "--tokenizer", "tok", "--out", name, cwd=home)


def measure(home: Path, name: str) -> dict[str, Any]:
    """One run: predicted and measured bytes."""
    model, method, words = CASES[name]
    data = "pairs.jsonl" if method == "dpo" else "rows.jsonl"
    common = ["--method", method, "--model", model, "--data", data, *words.split()]
    plan = json.loads(ernie("plan", *common, "--json", cwd=home))
    extra = ["--out", f"out-{name}", f"train.max_steps={STEPS}", "checkpoint.export=false", "log.report=false"]
    extra += ["checkpoint.final=false"]
    lines = ernie("run", *common, *extra, "--json", cwd=home).splitlines()
    events = [json.loads(line) for line in lines]
    steps, end, estimate = [e for e in events if e["event"] == "step"], events[-1], plan["estimate"]
    return {
        "case": name,
        "parameters": plan["parameters"]["total"],
        "planned": estimate["peak_memory"],
        "measured": end["tensor_memory"],
        "error": estimate["peak_memory"] / end["tensor_memory"] - 1,
        "process": end["peak_memory"],
        "process_error": estimate["process_memory"] / end["peak_memory"] - 1,
        "states": plan["memory"],
        "activations": estimate["activations"],
        "tokens": [event["tokens"] for event in steps],
        "seconds": steps[-1]["seconds"],
        "step_flops": estimate["step_flops"],
    }


def words_of(home: Path, model: str, method: str, words: str) -> list[str]:
    """Of a run in Python."""
    data = home / ("pairs.jsonl" if method == "dpo" else "rows.jsonl")
    own = [
        f"model.name={MODELS[model][0]}",
        f"model.path={home / model}",
        f"method.name={method}",
        f"data.train={data}",
    ]
    return [*own, *words.split()]


def measure_layout(home: Path, name: str) -> list[dict[str, Any]]:
    """One run of two processes: predicted and measured bytes of each."""
    from erniecore_conformance.processes import on_ranks

    model, method, words = LAYOUTS[name]
    common = words_of(home, model, method, words)
    stages = json.loads(ernie("plan", *common, "--nproc", "2", "--json", cwd=home))["estimate"]["stages"]
    extra = [f"run.out={home / name}", f"train.max_steps={STEPS}", "checkpoint.export=false", "log.report=false"]
    found = on_ranks(2, f"{RANK}:grown", [*common, *extra, "checkpoint.final=false"], limit=1500.0)
    rows = []
    for rank, (tensors, process) in enumerate(found):
        plan = stages[rank * len(stages) // 2]
        rows.append(
            {
                "case": f"{name}, rank {rank}",
                "planned": plan["peak_memory"],
                "measured": tensors,
                "error": plan["peak_memory"] / tensors - 1,
                "process": process,
                "process_error": plan["process_memory"] / process - 1,
                "plan": plan,
            }
        )
    return rows


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a Markdown table, in MiB."""
    lines = [
        "| run | planned MiB | measured MiB | error | process planned MiB | measured MiB | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        own, process = (r["planned"], r["measured"]), (r["process"] * (1 + r["process_error"]), r["process"])
        cells = [f"{a / 2**20:.0f} | {b / 2**20:.0f} | {a / b - 1:+.0%}" for a, b in (own, process)]
        lines.append(f"| {r['case']} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="some of the cases (default: all)", choices=[[], *CASES, *LAYOUTS])
    parser.add_argument("--out", type=Path, help="JSON lines are written here too")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        make(home)
        for name in args.names or [*CASES, *LAYOUTS]:
            rows = [measure(home, name)] if name in CASES else measure_layout(home, name)
            results += rows
            print("\n".join(json.dumps(row) for row in rows), flush=True)
            if args.out:
                args.out.write_text("".join(json.dumps(r) + "\n" for r in results))
    print(table(results))
    for what in ("error", "process_error"):
        errors = [abs(r[what]) for r in results]
        within = sum(e <= 0.1 for e in errors)
        print(
            f"{what}: mean {statistics.mean(errors):.1%}, worst {max(errors):.1%}, {within} of {len(errors)} within 10 %"
        )


if __name__ == "__main__":
    main()
