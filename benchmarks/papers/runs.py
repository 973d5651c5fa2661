"""Runs of tiny models for experiments: text, tokenizer and runs by the product's own road, in this process."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.papers.common import Curve
from benchmarks.texts import paragraphs

VOCABULARY = 512
Event = Mapping[str, Any]


def prepare(out: Path, *, sums: float = 0.0) -> Path:
    """``out/data``: ``tok``, ``train.jsonl``, ``held.jsonl``; the same for every seed and arm. The text is the doc strings of
    Python's library, of which a share ``sums`` is replaced by sums of two numbers: another domain."""
    from erniecore_text.training import train

    home = out / "data"
    if (home / "ready").is_file():
        return home
    home.mkdir(parents=True, exist_ok=True)
    random, texts = Random(0), list(paragraphs())
    random.shuffle(texts)
    texts = [_sums(random) if random.random() < sums else text for text in texts[:6000]]
    (home / "tok").mkdir(exist_ok=True)
    train(texts[:3000], VOCABULARY).save(home / "tok")
    for name, part in (("held", texts[:150]), ("train", texts[150:])):
        rows = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in part)
        (home / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    (home / "ready").touch()
    return home


def _sums(random: Random) -> str:
    pairs = [(random.randrange(100), random.randrange(100)) for _ in range(12)]
    return " ".join(f"{a} + {b} = {a + b} ." for a, b in pairs)


def train(
    out: Path, name: str, model: str, size: Mapping[str, object], seed: int, steps: int, settings: Sequence[str]
) -> list[Event]:
    """Events of one run of ``method.name=pt`` from new weights; arms of one seed have the same data and start. Weights are
    not kept."""
    import erniecore

    home, run = (
        prepare(out) if not (out / "data" / "ready").is_file() else out / "data",
        out / "runs" / f"{name}-{seed}",
    )
    shutil.rmtree(run, ignore_errors=True)
    fixed = {
        "model.name": model,
        "model.size": "tiny",
        "model.tokenizer": home / "tok",
        **{f"model.architecture.{key}": value for key, value in size.items()},
        "method.name": "pt",
        "data.train": home / "train.jsonl",
        "data.eval": home / "held.jsonl",
        "run.seed": seed,
        "run.out": run,
        "train.max_steps": steps,
        "checkpoint.final": "false",
        "checkpoint.export": "false",
        "log.report": "false",
    }
    erniecore.run(overrides=[*(f"{key}={value}" for key, value in fixed.items()), *settings], console="none")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    shutil.rmtree(run)
    return events


def learn(
    objective: Any,
    samples: Sequence[Any],
    parameters: Sequence[Any],
    seed: int,
    steps: int,
    batch: int,
    rate: float,
    warmup: int,
) -> list[float]:
    """AdamW outside of a run, for models whose parts are trained one by one: so many steps of ``batch`` samples each, with
    a warm-up and a constant rate. Which samples, and what an objective of ``ernie3-pretrain`` draws of them, is by the seed.

    Returns:
        The loss of each step.
    """
    import paddle
    from erniecore_ernie3_pretrain.drawing import seeded

    from erniecore.api.training import collate

    schedule = paddle.optimizer.lr.LinearWarmup(rate, warmup, 0.0, rate)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=list(parameters), weight_decay=0.01)
    losses, order = [], np.random.default_rng(seed)
    objective.policy.train()
    for step in range(steps):
        rows = [[samples[i]] for i in order.choice(len(samples), batch, replace=False)]
        given = seeded(collate(rows, pad_id=0), zlib.crc32(f"{seed}/{step}".encode()))
        loss = objective(given, objective.normalizers(given)).loss
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
        losses.append(float(loss))
    return losses


def eval_loss(events: Sequence[Event]) -> float:
    """Of the last evaluation, nats per token."""
    return float([event for event in events if event["event"] == "eval"][-1]["loss"])


def steps_of(events: Sequence[Event], key: str) -> Curve:
    """A metric by step, where it was measured."""
    return [
        (event["step"], float(event[key]))
        for event in events
        if event["event"] == "step" and event.get(key) is not None
    ]


def tail_mean(curve: Curve, share: float = 0.2) -> float:
    """Mean of the last part of a curve."""
    last = [value for _, value in curve[-max(1, round(share * len(curve))) :]]
    return sum(last) / len(last)
