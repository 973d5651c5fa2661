"""Online distillation: students that learn from a teacher while it learns, against students that learn from the finished one, and
without what the paper adds (an auxiliary layer, an assistant).

Text: sentences of six words whose next word depends on the one before it and on the first, by tables drawn from the seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.papers.common import Experiment, Found, Results, Verdict

#: name -> size; the students are compared, teacher and assistant teach
SIZES = {
    "teacher": "hidden_size=48,intermediate_size=144,num_hidden_layers=8,num_attention_heads=4,num_key_value_heads=2,head_dim=12",
    "assistant": "hidden_size=32,intermediate_size=96,num_hidden_layers=4,num_attention_heads=4,num_key_value_heads=2,head_dim=8",
    "wide": "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=8",
    "small": "hidden_size=24,intermediate_size=48,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=1,head_dim=12",
    "tiny": "hidden_size=16,intermediate_size=32,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=1,head_dim=8",
}
STUDENTS = ("wide", "small", "tiny")
VOCABULARY, RATE, STUDENT_RATE, FINE_TUNING = 320, 4e-3, 1.5e-2, 30
#: an interval of the difference that ends below this, in nats per token, counts as no worse
MARGIN = 0.02
ARMS: Mapping[str, Mapping[str, Any]] = {
    "online": {},
    "offline": {},
    "no auxiliary layer": {"method.auxiliary_layer": False},
    "no assistant": {"method.assistant": ""},
    "labels alone": {"method.logits": 0, "method.attention": 0, "method.labels": 1, "method.assistant": ""},
}


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """One arm: all three students, before and after fine-tuning on other text."""
    home = prepared(seed, out)
    teacher = home / f"teacher-{steps}"
    if not (teacher / "model").is_dir():
        trained(teacher, seed, steps, {"method.name": "pt", "model.path": home / "teacher"})
    own = home / f"{arm.replace(' ', '-')}-{steps}"
    changes: dict[str, Any] = {
        "method.name": "online-distill",
        "method.assistant": home / "assistant",
        **{f"method.students.{name}": home / name for name in STUDENTS},
        "method.learning_rate": STUDENT_RATE,
        "model.path": home / "teacher",
        **ARMS[arm],
    }
    if arm == "offline":  # the finished teacher, at a rate that changes no weight
        changes |= {"model.path": teacher / "model", "train.learning_rate": 1e-30}
    metrics, events = trained(own, seed, steps, changes)
    tuned = fine_tuned(own, home, "small", seed)
    curve = [
        (float(e["step"]), mean(e[f"students/{name}/loss"] for name in STUDENTS))
        for e in events
        if e["event"] == "step" and e["step"] % 5 == 0
    ]
    forwards = steps if arm == "offline" else 0
    values = {
        "loss": mean(metrics[f"eval/students/{name}/loss"] for name in STUDENTS),
        "tuned": tuned,
        **{name: metrics[f"eval/students/{name}/loss"] for name in STUDENTS},
        "forwards": float(forwards),
        "teacher": float(weights(own) == weights(teacher)),
    }
    return Found(values, {"loss": curve})


def prepared(seed: int, out: Path) -> Path:
    """Data, tokenizer and new models of a seed, alike for all arms."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    home = out / f"seed-{seed}"
    if not (home / "tiny").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        tables, others = Tables(seed), Tables(seed + 1000)
        texts = tables.texts(400)
        for name, made in (("train", texts), ("held-out", tables.texts(30)), ("fine-tuning", others.texts(60))):
            rows(home / f"{name}.jsonl", made)
        rows(home / "other-held-out.jsonl", others.texts(30))
        (home / "tokenizer").mkdir(exist_ok=True)
        train([*texts, *others.texts(30)], VOCABULARY).save(home / "tokenizer")
        for name, size in SIZES.items():
            init_model("ernie45", size, home / "tokenizer", home / name, seed_value=seed)
    return home


class Tables:
    """A language: six words to a sentence, each by a table of the word before it and of the first one."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
        words = sorted({"".join(random.Random(word).choices(syllables, k=2)) for word in range(90)})
        self.slots = [words[place::6][:12] for place in range(6)]
        self.tables: dict[tuple[int, str, str], list[float]] = {}

    def sentence(self) -> str:
        """Six words that follow from one another, and a full stop."""
        found = [self.draw.choice(self.slots[0])]
        for place in range(1, 6):
            key = (place, found[0], found[-1])
            if key not in self.tables:
                self.tables[key] = [self.draw.gammavariate(0.2, 1.0) for _ in self.slots[place]]
            found += self.draw.choices(self.slots[place], self.tables[key])
        return " ".join(found) + "."

    def texts(self, count: int) -> list[str]:
        """So many documents of eight sentences."""
        return [" ".join(self.sentence() for _ in range(8)) for _ in range(count)]


def rows(path: Path, texts: list[str]) -> None:
    """Documents of a file."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def trained(out: Path, seed: int, steps: int, changes: Mapping[str, Any]) -> tuple[Mapping[str, float], list[Any]]:
    """A run on the same rows in the same order: its last metrics and its events."""
    import erniecore

    keys = {
        "model.name": "ernie45",
        "data.train": out.parent / "train.jsonl",
        "data.eval": out.parent / "held-out.jsonl",
        "data.max_seq_len": 64,
        "train.batch_size": 6,
        "train.max_steps": steps,
        "train.learning_rate": RATE,
        "train.warmup_ratio": 0.05,
        "train.accumulation": 1,
        "run.seed": seed,
        "run.resume": "auto",
        "run.out": out,
        "eval.max_steps": 12,
        "log.report": "false",
        **changes,
    }
    result = erniecore.run(overrides=[f"{key}={value}" for key, value in keys.items()], console="none")
    return result.metrics, list(result.events)


def fine_tuned(own: Path, home: Path, name: str, seed: int) -> float:
    """Held-out loss of a finished student after a few steps on the language of other tables."""
    changes = {
        "method.name": "pt",
        "model.path": own / "students" / name,
        "data.train": home / "fine-tuning.jsonl",
        "data.eval": home / "other-held-out.jsonl",
    }
    metrics, _ = trained(home / f"{own.name}-{name}", seed, FINE_TUNING, changes)
    return metrics["eval/loss"]


def weights(out: Path) -> bytes:
    """The bytes of the teacher's weights as a run left them."""
    return b"".join(path.read_bytes() for path in sorted((out / "model").glob("*.safetensors")))


def judge(results: Results) -> tuple[Verdict, str]:
    """By the rule of the experiment."""
    pair = results.compare("online", "offline", "loss")
    low, high = pair.ends
    same = all(all(results.values(arm, "teacher").values()) for arm in ARMS)
    verdict: Verdict = "contrary" if low > MARGIN or not same else "seen" if high < MARGIN else "not seen"
    parts = [f"online minus offline {pair.mean:+.4f} nats ({low:+.4f} … {high:+.4f})"]
    for arm in ("no auxiliary layer", "no assistant", "labels alone"):
        other = results.compare(arm, "online", "tuned" if arm == "no auxiliary layer" else "loss")
        after = " after fine-tuning" if arm == "no auxiliary layer" else ""
        parts.append(f"{arm} minus online{after} {other:+.4f}")
    teacher = "has the bits of pre-training alone in every run" if same else "differs from pre-training alone"
    return verdict, f"The teacher {teacher}. Loss of the students: {'; '.join(parts)}."


EXPERIMENT = Experiment(
    name="online-distill",
    title="Online distillation",
    question="Do students that learn from a teacher while it is trained become as good as students of the finished teacher, "
    "without a pass of the teacher that is made for them, and without a change of the teacher (ERNIE 3.0 Titan, "
    "arXiv:2112.12731)?",
    rule="seen where the teacher of every run has the bits of pre-training alone, and the 95 % interval of the held-out loss of "
    f"the students, online minus offline, ends below {MARGIN} nats per token; contrary where a teacher differs, or the interval "
    "begins above that; else not seen. What auxiliary layer and assistant bring is said beside it and does not decide.",
    size="Teacher of 8 layers, hidden size 48; assistant 4 layers, 32; students 2 layers of 32 and of 24, and 1 layer of 16; "
    f"vocabulary {VOCABULARY}; {{steps}} steps of 6 sequences of 64 tokens of a made-up language with tables of word pairs; "
    f"fine-tuning on other tables for {FINE_TUNING} steps. Offline: the same steps again with the finished teacher, and the "
    "assistant beside.",
    baseline="online",
    arms=tuple(ARMS),
    measures={
        "loss": "held-out negative log-likelihood, nats per token, mean of the three students",
        "tuned": "held-out loss of *small* after fine-tuning on other tables",
        "wide": "held-out loss of the student of 2 layers, hidden size 32",
        "small": "held-out loss of the student of 2 layers, hidden size 24",
        "tiny": "held-out loss of the student of 1 layer, hidden size 16",
        "forwards": "passes of the teacher over a batch that were made for the students alone",
        "teacher": "1: the teacher's weights have the bits of pre-training alone",
    },
    run=run,
    judge=judge,
    seeds=3,
    steps=200,
    axes={"loss": ("step", "loss of the students, nats per token")},
)
