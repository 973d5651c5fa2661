"""Does GRPO go on where fine-tuning stops? Three curves of exact match on held-out questions, over several seeds.

    python -m benchmarks.grpo --out runs/grpo-study            # about 10 minutes on one core
    python -m benchmarks.grpo --out runs/grpo-study --seeds 1  # only one

A tiny ERNIE 4.5 learns four families of tasks from few demonstrations, a share of which is wrong. From where its curve is
flat, three runs go on from the same weights: fine-tuning on the same demonstrations (``sft``), GRPO on questions whose
answers are only checked (``grpo``), and fine-tuning on the right answers to GRPO's questions (``sft-right``), which needs what a
reward function does not: somebody who writes them. Writes ``study.json`` and ``study.png``; everything is an ordinary run.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_demo import tasks

import erniecore

FAMILIES = ("reverse", "sort", "copy", "last")
#: demonstrations and the share of wrong ones; questions for GRPO; held-out questions
DEMONSTRATIONS, WRONG, QUESTIONS, HELDOUT = 1600, 0.25, 6000, 200
SIZE = (
    "hidden_size=64,intermediate_size=128,num_hidden_layers=2,num_attention_heads=8,num_key_value_heads=4,head_dim=8,"
    "initializer_range=0.1,rope_theta=10000.0,max_position_embeddings=512"
)
#: 8 packed rows hold about 44 demonstrations
SFT = {"method.name": "sft", "data.max_seq_len": 128, "train.batch_size": 8, "train.weight_decay": 0.1}
GRPO = {
    "method.name": "grpo",
    "method.group_size": 8,
    "method.max_new_tokens": 8,
    "method.learn_batch_size": 256,
    "method.updates_per_rollout": 2,
    "rewards.exact-match.weight": 1.0,
    "data.packing": "none",
    "data.max_seq_len": 64,
    "train.batch_size": 24,
    "train.weight_decay": 0.0,
}
#: updates until the curves part, and after that: fine-tuning is given as much time as GRPO takes, and not only as many
#: updates; a curve has a point every so many updates
BEFORE, AFTER, EVERY = 500, {"grpo": 200, "sft": 600, "sft-right": 200}, 50
RATES = {"before": 3e-3, "sft": 1e-3, "grpo": 6e-4, "sft-right": 1e-3}


def main() -> None:
    """Run every arm of every seed and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/grpo-study"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    results = [study(arguments.out / f"seed-{seed}", seed) for seed in arguments.seeds]
    (arguments.out / "study.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    plot(results, arguments.out / "study.png")
    for result in results:
        print(result["seed"], {arm: f"{curve[-1]['exact_match']:.3f}" for arm, curve in result["curves"].items()})


def study(out: Path, seed: int) -> dict[str, Any]:
    """One seed: the common start and the arms that go on from it."""
    out.mkdir(parents=True, exist_ok=True)
    write_data(out, seed)
    base = new_model(out, seed)
    started = run(
        out / "before", base, {**SFT, "data.train": out / "demonstrations.jsonl"}, BEFORE, RATES["before"], seed
    )
    arms = {
        "grpo": {**GRPO, "data.train": out / "questions.jsonl"},
        "sft": {**SFT, "data.train": out / "demonstrations.jsonl"},
        "sft-right": {**SFT, "data.train": out / "questions.jsonl"},
    }
    curves = {"before": curve(out / "before", base, out / "held-out.jsonl", 0)}
    for arm, settings in arms.items():
        run(out / arm, started, settings, AFTER[arm], RATES[arm], seed + 100)
        curves[arm] = curve(out / arm, started, out / "held-out.jsonl", BEFORE)
    return {"seed": seed, "curves": curves}


def write_data(out: Path, seed: int) -> None:
    """Demonstrations, a share of them with the answer to another question; questions; held-out questions."""
    generator = random.Random(seed)
    rows = list(tasks.rows("train", DEMONSTRATIONS, seed=seed, families=FAMILIES))
    by_family = {family: [row["messages"][1] for row in rows if row["task"] == family] for family in FAMILIES}
    for row in rows:
        if generator.random() < WRONG:
            row["messages"] = [row["messages"][0], generator.choice(by_family[row["task"]])]
    fresh = list(tasks.rows("train", QUESTIONS, seed=seed + 1000, families=FAMILIES))
    heldout = list(tasks.rows("heldout", HELDOUT, seed=0, families=FAMILIES))
    for name, content in {"demonstrations": rows, "questions": fresh, "held-out": heldout}.items():
        text = "".join(json.dumps(row) + "\n" for row in content)
        (out / f"{name}.jsonl").write_text(text, encoding="utf-8")


def new_model(out: Path, seed: int) -> Path:
    """A tokenizer of single characters and words of the tasks, and a model with random weights."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    if not (out / "base").exists():
        texts = [m["content"] for row in tasks.rows("train", 3000, families=FAMILIES) for m in row["messages"]]
        (out / "tokenizer").mkdir()
        train([" ".join(text) if text.isdigit() else text for text in texts], 330).save(out / "tokenizer")
        init_model("ernie45", SIZE, out / "tokenizer", out / "base", seed_value=seed)
    return out / "base"


def run(out: Path, model: Path, settings: dict[str, Any], steps: int, rate: float, seed: int) -> Path:
    """Train, or do nothing where that is done; the trained model's directory."""
    keys = {
        "model.path": model,
        "run.out": out,
        "run.seed": seed,
        "train.max_steps": steps,
        "train.learning_rate": rate,
        "train.schedule": "constant-with-warmup",
        "train.warmup_steps": 20,
        "checkpoint.every": EVERY,
        "checkpoint.keep": 100,
        "log.report": "false",
        **settings,
    }
    if not (out / "model").exists():
        erniecore.run(overrides=["model.name=ernie45", *(f"{k}={v}" for k, v in keys.items())], console="none")
    return out / "model"


def curve(out: Path, start: Path, questions: Path, offset: int) -> list[dict[str, float]]:
    """Exact match before the run and at each of its checkpoints, with the seconds of training until then."""
    seconds = dict(step_seconds(out / "events.jsonl"))
    model, tokenizer = erniecore.load_model(start), erniecore.load_tokenizer(start)
    rows = [json.loads(line)["messages"] for line in questions.read_text(encoding="utf-8").splitlines()]
    points = [{"step": offset, "seconds": 0.0, "exact_match": exact_match(model, tokenizer, rows)}]
    for path in list_checkpoints(out / "ckpt"):
        checkpoint, state = load_checkpoint(path, verify=False), model.state_dict()
        for name, array in checkpoint.tensors["model"].items():
            state[name].set_value(array)
        score = exact_match(model, tokenizer, rows)
        points.append({"step": offset + checkpoint.step, "seconds": seconds[checkpoint.step], "exact_match": score})
    print(out, [f"{p['step']}: {p['exact_match']:.3f}" for p in points], f"{points[-1]['seconds']:.0f} s", flush=True)
    return points


def step_seconds(events: Path) -> Iterator[tuple[int, float]]:
    """(step, seconds of training up to it)."""
    total = 0.0
    for line in events.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            total += event["seconds"]
            yield event["step"], total


def exact_match(model: Any, tokenizer: Any, rows: Sequence[Any]) -> float:
    """Share of greedy answers that are right."""
    from erniecore_generation.respond import generate_text

    from erniecore.types.records import Message

    prompts = [[Message("user", asked["content"])] for asked, _ in rows]
    answers = generate_text(model, tokenizer, prompts, max_new_tokens=8, batch_size=len(prompts))
    pairs = zip(answers, rows, strict=True)
    return sum(answer.content.strip() == right["content"] for answer, (_, right) in pairs) / len(rows)


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Every seed as a thin line, their mean as a thick one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    colors = {"before": "#666666", "sft": "#c0392b", "grpo": "#1f6fb4", "sft-right": "#7aa874"}
    labels = {
        "before": "fine-tuning on demonstrations, a quarter of them wrong",
        "sft": "the same goes on",
        "grpo": "GRPO on new questions, answers only checked",
        "sft-right": "fine-tuning on right answers to these questions",
    }
    for arm, color in colors.items():
        lines = [result["curves"][arm] for result in results]
        steps = [point["step"] for point in lines[0]]
        for line in lines:
            axes.plot(steps, [p["exact_match"] for p in line], color=color, alpha=0.3, linewidth=1)
        means = [sum(line[i]["exact_match"] for line in lines) / len(lines) for i in range(len(steps))]
        axes.plot(steps, means, color=color, linewidth=2.2, label=labels[arm])
    axes.set(xlabel="updates", ylabel="exact match, held-out questions", ylim=(0, 1))
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"took {time.monotonic() - started:.0f} s")
