"""Preferences of real rows with a model of 1.9 M parameters: fine-tune, then DPO or KTO, and what held-out rows say.

    python benchmarks/real_preferences.py DATA OUT [--rate dpo=2e-4 --rate kto=2e-5]

DATA holds ``dpo_en_demo.json``, ``kto_en_demo.json`` and ``alpaca_en_demo.json``. Prints a line per evaluation: the last
tenth of the shuffled rows is held out, and the tokenizer and fine-tuning see the other nine only.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

SIZE = (
    "hidden_size=192,intermediate_size=512,num_hidden_layers=3,num_attention_heads=4,num_key_value_heads=2,"
    "initializer_range=0.05"
)
ROLES = {"human": "user", "gpt": "assistant", "system": "system"}
#: of both stages
SETTINGS = {"model.name": "ernie45", "run.resume": "never", "log.every": 20}
TUNING = {
    "data.max_seq_len": 512, "data.max_drop": 0.9, "train.max_steps": 250, "train.batch_size": 6,
    "train.learning_rate": 2e-3, "train.schedule": "wsd", "train.warmup_steps": 10, "train.decay_steps": 80,
    "optimizer.beta2": 0.95,
}  # fmt: skip
PREFERENCES = {
    "data.max_seq_len": 1024, "data.max_drop": 0.5, "data.packing": "none", "train.max_steps": 120,
    "train.batch_size": 4, "train.schedule": "constant", "eval.every": 20, "eval.batch_size": 30,
    "checkpoint.final": "false", "checkpoint.export": "false",
}  # fmt: skip


def ernie(*words: object) -> None:
    """A command in a process of its own."""
    subprocess.run([sys.executable, "-m", "erniecore", *map(str, words)], check=True)


def turns(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """ShareGPT's turns as messages."""
    return [{"role": ROLES[m["from"]], "content": m["value"]} for m in messages]


def write_data(data: Path, out: Path) -> None:
    """Training and held-out rows of both files, and what to fine-tune on."""
    read = {name: json.loads((data / f"{name}_en_demo.json").read_text()) for name in ("dpo", "kto", "alpaca")}
    tuned: list[dict[str, Any]] = []
    for seed, name in enumerate(("dpo", "kto")):
        rows = read[name]
        random.Random(seed).shuffle(rows)
        train, heldout = rows[: -len(rows) // 10], rows[-len(rows) // 10 :]
        (out / f"{name}.json").write_text(json.dumps(train))
        (out / f"held_{name}.json").write_text(json.dumps(heldout))
        if name == "dpo":
            tuned += [{"messages": turns([*row["conversations"], row["chosen"]])} for row in train]
        else:
            tuned += [{"messages": row["messages"]} for row in train if row["label"]]
    for row in read["alpaca"]:
        question = "\n".join(part for part in (row["instruction"], row["input"]) if part)
        if row["output"]:
            pair = (("user", question), ("assistant", row["output"]))
            tuned.append({"messages": [{"role": role, "content": text} for role, text in pair]})
    (out / "sft.json").write_text(json.dumps(tuned))


def train(out: Path, method: str, model: Path, **settings: object) -> None:
    """One run; prints its evaluations."""
    heldout = out / f"held_{method}.json"
    files: dict[str, object] = {
        "data.train": out / f"{method}.json",
        "run.out": out / method,
        "model.path": model,
        "method.name": method,
    }
    if heldout.exists():
        files["data.eval"] = heldout
    ernie("run", *(f"{key}={value}" for key, value in {**SETTINGS, **files, **settings}.items()))
    for line in (out / method / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "eval":
            shown = {k: round(v, 3) for k, v in event.items() if k.startswith("rewards/") or k == "loss"}
            print(method, event["step"], json.dumps(shown), flush=True)


def main() -> None:
    """Parse the arguments and run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rate", action="append", default=[], metavar="METHOD=RATE")
    given = parser.parse_args()
    rates = {"dpo": "2e-4", "kto": "2e-5", **dict(word.split("=") for word in given.rate)}
    given.out.mkdir(parents=True, exist_ok=True)
    write_data(given.data, given.out)
    ernie("tokenizer", "train", given.out / "sft.json", "--vocab-size", 4096, "--out", given.out / "tok")
    words = ["--model", "ernie45", "--tokenizer", given.out / "tok", "--size", SIZE, "--out", given.out / "base"]
    ernie("model", "init", *words)
    train(given.out, "sft", given.out / "base", **TUNING)
    for method, rate in rates.items():
        train(given.out, method, given.out / "sft" / "model", **PREFERENCES, **{"train.learning_rate": rate})


if __name__ == "__main__":
    main()
