"""Progressive learning (ERNIE 3.0, arXiv:2107.02137): does a run whose length, batch and rate grow together reach a loss with
fewer FLOPs than one of fixed length and batch, at the same number of tokens?

Both see windows of the same documents; those of growing steps are cut into shorter ones. FLOPs are counted, not measured: of the
matrix products of what attends to each other, forward and backward.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.papers.common import Curve, Experiment, Found, Results, Verdict
from benchmarks.papers.online_distill import trained
from benchmarks.papers.runs import VOCABULARY
from benchmarks.texts import paragraphs

HIDDEN, MLP, LAYERS, HEADS = 48, 128, 2, 4
SIZE = (
    f"hidden_size={HIDDEN},intermediate_size={MLP},num_hidden_layers={LAYERS},num_attention_heads={HEADS},"
    f"num_key_value_heads={HEADS},head_dim={HIDDEN // HEADS},vocab_size={VOCABULARY}"
)
#: tokens of a sequence, sequences of a micro-batch, micro-batches of a step, peak of the rate
LENGTH, ROWS, MICRO, RATE = 256, 2, 4, 4e-3
START_LENGTH, START_BATCH = 32, 0.25
#: paragraphs of a document, documents to train on at most, those that are held out, and their sequences
JOINED, READ, EVALUATED, EVALUATED_ROWS = 30, 220, 12, 40
#: shares of the steps of the fixed run in which the rate grows: in the short one, and where everything grows with it
SHORT, LONG = 0.1, 0.4
#: nats per token whose FLOPs are compared; chosen by a run of ``fixed`` with a seed that does not count
TARGET = 4.9
#: evaluations of a run
POINTS = 16
FIXED, PROGRESSIVE = "fixed", "progressive"


class Arm(NamedTuple):
    """What grows, from which length and share of the micro-batches, during which share of the steps; the rate always."""

    length: int
    batch: float
    growth: float


ARMS: Mapping[str, Arm] = {
    FIXED: Arm(LENGTH, 1.0, SHORT),
    "fixed, long warm-up": Arm(LENGTH, 1.0, LONG),
    PROGRESSIVE: Arm(START_LENGTH, START_BATCH, LONG),
}


class Cost(NamedTuple):
    """Of one step: sequences that are learned from, and FLOPs."""

    rows: int
    flops: float


def costs(arm: Arm, steps: int) -> Iterator[Cost]:
    """Of each step, as the schedule of the method has it; ``steps`` of the fixed run, the iterator has no end."""
    from erniecore_progressive.schedule import Stage, fewer, stage

    growing, step = round(arm.growth * steps), 0
    start, end = Stage(arm.length, arm.batch, 0.0), Stage(LENGTH, 1.0, 0.0)
    micro: Any = range(MICRO)
    while True:
        step += 1
        now = stage(step, growing, start, end)
        rows = ROWS * len(fewer(micro, now.batch))
        yield Cost(rows, rows * sequence_flops(LENGTH, now.length))


def sequence_flops(length: int, window: int) -> float:
    """FLOPs of a forward and a backward pass over ``length`` tokens in windows: 6 for each weight of a matrix and token, 12 for
    each layer, column of the heads and pair of tokens that attend to each other (two products, one again for each gradient)."""
    weights = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * MLP) + HIDDEN * VOCABULARY
    whole, rest = divmod(length, window)
    pairs = whole * window * (window + 1) / 2 + rest * (rest + 1) / 2
    return 6.0 * weights * length + 12.0 * LAYERS * HIDDEN * pairs


def steps_of(arm: Arm, steps: int) -> int:
    """As many as read the tokens of ``steps`` steps of the fixed run, or less than a step more."""
    left, done = steps * ROWS * MICRO, 0
    for cost in costs(arm, steps):
        left, done = left - cost.rows, done + 1
        if left <= 0:
            return done
    raise AssertionError


def prepared(seed: int, out: Path) -> Path:
    """Documents (paragraphs of the standard library that follow each other), tokenizer, and the new model of a seed."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    home = out / f"seed-{seed}"
    if (home / "new").is_dir():
        return home
    home.mkdir(parents=True, exist_ok=True)
    texts = paragraphs()
    documents = ["\n".join(texts[start : start + JOINED]) for start in range(0, len(texts), JOINED)]
    every = max(1, len(documents) // EVALUATED)
    parts = {
        "held-out": documents[::every][:EVALUATED],
        "train": [d for i, d in enumerate(documents) if i % every][:READ],
    }
    for name, part in parts.items():
        (home / f"{name}.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in part), encoding="utf-8")
    (home / "tokenizer").mkdir(exist_ok=True)
    train(parts["train"][:100], VOCABULARY).save(home / "tokenizer")
    init_model("ernie45", SIZE, home / "tokenizer", home / "new", seed_value=seed)
    return home


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """Held-out loss by FLOPs and by tokens."""
    chosen, home = ARMS[arm], prepared(seed, out)
    own_steps = steps_of(chosen, steps)
    changes = {
        "method.name": "progressive",
        "method.start_length": chosen.length,
        "method.start_batch": chosen.batch,
        "model.path": home / "new",
        "data.max_seq_len": LENGTH,
        "data.packing": "none",
        "train.batch_size": ROWS,
        "train.accumulation": MICRO,
        "train.learning_rate": RATE,
        "train.schedule": "constant-with-warmup",
        "train.warmup_ratio": 0,
        "train.warmup_steps": round(chosen.growth * steps),
        "eval.every": max(1, own_steps // POINTS),
        "eval.max_steps": EVALUATED_ROWS // ROWS,
    }
    _, events = trained(home / f"{arm.replace(' ', '-').replace(',', '')}-{steps}", seed, own_steps, changes)
    tokens = {e["step"]: float(e["tokens"]) for e in events if e["event"] == "step"}
    losses = {e["step"]: float(e["loss"]) for e in events if e["event"] == "eval"}
    spent, flops = 0.0, dict[int, float]()
    for step, cost in zip(sorted(tokens), costs(chosen, steps), strict=False):
        spent += cost.flops / 1e9
        flops[step] = spent
    by_flops = [(round(flops[step], 3), losses[step]) for step in sorted(losses)]
    values = {
        "GFLOP to the loss": reached(by_flops, TARGET),
        "loss": by_flops[-1][1],
        "loss at half the FLOPs": at(by_flops, 0.5 * steps * ROWS * MICRO * sequence_flops(LENGTH, LENGTH) / 1e9),
        "GFLOP": spent,
        "tokens": sum(tokens.values()) / 1e3,
        "steps": float(own_steps),
    }
    return Found(values, {"flops": by_flops})


def reached(curve: Curve, target: float) -> float:
    """Where a falling curve first comes to ``target``, between two points on a line; its end, if it does not."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y1 <= target < y0:
            return x0 + (x1 - x0) * (y0 - target) / (y0 - y1)
    return curve[0][0] if curve[0][1] <= target else curve[-1][0]


def at(curve: Curve, x: float) -> float:
    """The value at ``x``, between two points on a line; beyond the ends that of the end."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return curve[0][1] if x < curve[0][0] else curve[-1][1]


def judge(results: Results) -> tuple[Verdict, str]:
    """By the FLOPs to the loss, against the better of the two fixed runs."""
    base = min((FIXED, "fixed, long warm-up"), key=lambda arm: results.mean(arm, "GFLOP to the loss"))
    gain = results.compare(PROGRESSIVE, base, "GFLOP to the loss")
    ratio = results.mean(PROGRESSIVE, "GFLOP to the loss") / results.mean(base, "GFLOP to the loss")
    final = results.compare(PROGRESSIVE, base, "loss")
    half = results.compare(PROGRESSIVE, base, "loss at half the FLOPs")
    told = (
        f"To {TARGET:g} nats progressive learning needs {ratio:.2f} times the FLOPs of *{base}*, which is the better of the "
        f"fixed runs: {gain.mean:+.0f} GFLOP ({gain.ends[0]:+.0f} … {gain.ends[1]:+.0f}). At half of the FLOPs its loss differs "
        f"by {half:+.4f}, at the end, after as many tokens, by {final:+.4f}."
    )
    return gain.judged(), told


EXPERIMENT = Experiment(
    name="progressive",
    title="Progressive learning",
    question="Does a run whose length, batch and rate grow together reach a loss with fewer FLOPs than one of fixed length and "
    "batch (ERNIE 3.0, arXiv:2107.02137)?",
    rule=f"seen where the 95 % interval of the paired difference of the FLOPs until the held-out loss is {TARGET:g} nats per "
    "token, progressive minus the better of the two fixed runs (by their mean), is below 0; contrary: above 0; else not seen. "
    "All read the same number of tokens; no difference at the end is asked for.",
    size=f"{LAYERS} layers, hidden {HIDDEN}, vocabulary {VOCABULARY}, doc strings of Python's library in documents of {JOINED} "
    f"paragraphs, sequences of {LENGTH} tokens, {ROWS * MICRO} a step, {{steps}} steps of the fixed run, AdamW {RATE:g}, "
    f"constant behind a warm-up of {SHORT:.0%} or {LONG:.0%} of the steps. Progressive: windows from {START_LENGTH} tokens and "
    f"a quarter of the batch on, in those {LONG:.0%}, and more steps until the tokens are as many.",
    baseline=FIXED,
    arms=tuple(ARMS),
    measures={
        "GFLOP to the loss": f"until the held-out loss is {TARGET:g}, between two evaluations on a line; all of them where it "
        "never is",
        "loss": f"held-out nats per token of {EVALUATED_ROWS} sequences, at the end: equal tokens",
        "loss at half the FLOPs": "of the fixed run",
        "GFLOP": "of the whole run, counted: matrix products, and pairs of tokens that attend to each other",
        "tokens": "thousands, learned from",
        "steps": "of the optimizer",
    },
    run=run,
    judge=judge,
    seeds=3,
    steps=100,
    axes={"flops": ("GFLOP", "held-out loss, nats per token")},
)
