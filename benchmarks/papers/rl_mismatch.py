"""Is mixed importance sampling with clipping stable where sampler and learner differ, and the plain ratio is not?"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.papers.common import Experiment, Found, Results, Verdict
from benchmarks.papers.runs import Event, steps_of, tail_mean

SIZE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "initializer_range": 0.1,
    "max_position_embeddings": 128,
}
#: operands, share of wrong demonstrations, demonstrations, fine-tuning steps
OPERANDS, WRONG, DEMONSTRATIONS, BEFORE = 12, 0.3, 3000, 250
#: of the sampler's weights, as a share of each matrix's root mean square
NOISE = 0.4
RATE = 1e-3
GSPO = ("method.ratio=sequence", "method.normalization=sequence", "method.epsilon_low=3e-4", "method.epsilon_high=4e-4")
MASK = "method.mismatch=[0.5, 5]"
NOISY = f"method.rollout_noise={NOISE}"
ARMS: dict[str, tuple[str, ...]] = {
    "GRPO": (NOISY,),
    "GRPO, masked": (NOISY, MASK),
    "GSPO": (NOISY, *GSPO),
    "MISC": (NOISY, *GSPO, MASK),
    "GRPO, same sampler": (),
}
RIGHT, GAP, NORM = "exact match", "sampling gap", "gradient norm"
#: names of files
PLOTS = ("exact-match", "sampling-gap")
EVERY = 10


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """From the same fine-tuned model and with the same questions as the other arms of the seed."""
    start = fine_tuned(out, seed)
    settings = {
        "model.path": start,
        "method.name": "grpo",
        "method.group_size": 8,
        "method.max_new_tokens": 4,
        "method.updates_per_rollout": 2,
        "method.learn_batch_size": 512,
        "rewards.exact-match.weight": 1.0,
        "data.train": out / "questions.jsonl",
        "data.eval": out / "questions.jsonl",
        "eval.every": EVERY,
        "eval.batch_size": OPERANDS**2,
        "train.batch_size": 24,
        "train.learning_rate": RATE,
        "train.weight_decay": 0.0,
    }
    events = trained(
        out / "runs" / f"{arm.replace(' ', '-').replace(',', '')}-{seed}", seed, steps, settings, ARMS[arm]
    )
    right = [(event["step"], float(event["reward"])) for event in events if event["event"] == "eval"]
    norms = steps_of(events, "grad_norm")
    gaps = steps_of(events, "sampling_gap")
    values = {RIGHT: right[-1][1], GAP: tail_mean(gaps), NORM: tail_mean(norms)}
    return Found(values, {PLOTS[0]: right, PLOTS[1]: gaps[EVERY - 1 :: EVERY]})


def fine_tuned(out: Path, seed: int) -> Path:
    """A model that adds two numbers right about half of the time, from demonstrations some of which are wrong."""
    run_of = out / "runs" / f"start-{seed}"
    if (run_of / "model" / "config.json").is_file():
        return run_of / "model"
    rows = [(a, b) for a in range(OPERANDS) for b in range(OPERANDS)]
    random = Random(seed)
    write(out / "questions.jsonl", ((a, b, a + b) for a, b in rows))
    chosen = [random.choice(rows) for _ in range(DEMONSTRATIONS)]
    wrong = [(random.randrange(2 * OPERANDS - 1) if random.random() < WRONG else a + b) for a, b in chosen]
    data = out / f"demonstrations-{seed}.jsonl"
    write(data, ((a, b, c) for (a, b), c in zip(chosen, wrong, strict=True)))
    settings = {
        "model.size": "tiny",
        "model.tokenizer": tokenizer(out),
        **{f"model.architecture.{key}": value for key, value in SIZE.items()},
        "method.name": "sft",
        "data.train": data,
        "train.batch_size": 32,
        "train.learning_rate": 3e-3,
    }
    trained(run_of, seed, BEFORE, settings, ("train.warmup_steps=20",), keep=True)
    return run_of / "model"


def trained(
    out: Path, seed: int, steps: int, settings: dict[str, Any], more: tuple[str, ...], *, keep: bool = False
) -> list[Event]:
    """The events of one run; ``keep``: with its model."""
    import erniecore

    shutil.rmtree(out, ignore_errors=True)
    fixed = {
        "model.name": "ernie45",
        "data.packing": "none",
        "data.max_seq_len": 64,
        "train.schedule": "constant-with-warmup",
        "train.max_steps": steps,
        "run.seed": seed,
        "run.out": out,
        "log.report": "false",
        "checkpoint.final": "false",
        "checkpoint.export": str(keep).lower(),
        **settings,
    }
    erniecore.run(overrides=[*(f"{key}={value}" for key, value in fixed.items()), *more], console="none")
    events = [json.loads(line) for line in (out / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    if not keep:
        shutil.rmtree(out)
    return events


def tokenizer(out: Path) -> Path:
    """Its tokens are single characters."""
    from erniecore_text.training import train

    if not (out / "tok").exists():
        (out / "tok").mkdir(parents=True)
        train(["0 1 2 3 4 5 6 7 8 9 +"] * 20, 295).save(out / "tok")
    return out / "tok"


def write(path: Path, sums: Iterator[tuple[int, int, int]]) -> None:
    """Rows that ask for a + b and answer c."""
    asked = (
        {"messages": [{"role": "user", "content": f"{a}+{b}"}, {"role": "assistant", "content": str(c)}]}
        for a, b, c in sums
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")


def judge(results: Results) -> tuple[Verdict, str]:
    """MISC against the plain ratio under mismatch, and the plain ratio against itself without one."""
    gain, harm = results.compare("MISC", "GRPO", RIGHT), results.compare("GRPO", "GRPO, same sampler", RIGHT)
    masked = results.compare("MISC", "GSPO", RIGHT)
    reason = (
        f"MISC ends {gain:+.3f} from GRPO and {masked:+.3f} from GSPO, which "
        f"has no mask; the mismatch costs GRPO {harm:+.3f}."
    )
    if gain.judged("higher") == "contrary":
        return "contrary", reason
    both = gain.judged("higher") == "seen" and harm.judged("higher") == "contrary"
    return ("seen" if both else "not seen"), reason


EXPERIMENT = Experiment(
    name="rl-mismatch",
    title="Mismatch of sampler and learner",
    question="Is mixed importance sampling with clipping stable where sampler and learner differ, and the plain ratio is not "
    "(ERNIE 5.0)?",
    rule="Exact match of the last evaluation, greedy, by the learner's weights. *seen* if MISC ends above GRPO with the same "
    "mismatch (95 % interval of the paired difference above 0) and the mismatch costs GRPO something (interval of its difference "
    "to GRPO without mismatch below 0); *contrary* if MISC ends below GRPO; else *not seen*.",
    size=f"Sums of two numbers below {OPERANDS}, {OPERANDS**2} questions that are trained on and evaluated; 2 layers, hidden 64; "
    f"{BEFORE} steps of fine-tuning on {DEMONSTRATIONS} demonstrations, {WRONG:.0%} of them with a random answer; then "
    f"{{steps}} updates, two per rollout of 24 questions with 8 completions each, AdamW at a constant 1e-3. Rollouts by weights "
    f"with Gaussian noise of {NOISE:.0%} (the sampler), unless the arm says otherwise.",
    baseline="GRPO",
    arms=tuple(ARMS),
    measures={
        RIGHT: "share of the questions that are answered right at the end",
        GAP: "mean |log π of sampler - log π of learner| per token, over the last fifth of the updates",
        NORM: "mean over the last fifth of the updates",
    },
    run=run,
    judge=judge,
    seeds=5,
    steps=120,
    axes={PLOTS[0]: ("updates", "exact match"), PLOTS[1]: ("updates", "nats per token")},
)
