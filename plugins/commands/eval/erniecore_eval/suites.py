"""Scores of a model on rows: loss per token, bits per byte, exact match with its confidence interval, by group.

Statistics and bookkeeping only. Reading files, building the objective and generating are left to the caller, so this
module needs no paddle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from erniecore.api.data import Conversation, Message
from erniecore.api.method import IGNORE, Record, Sample, with_differences
from erniecore.api.model import Tokenizer

#: name -> (sum, weight)
Sums: TypeAlias = Mapping[str, tuple[float, float]]

#: two-sided 95 % of the normal distribution
Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Item:
    """One row, encoded.

    Attributes:
        group: value of the row's grouping key, ``""`` without one.
        record: what the row means. samples: what the method makes of it.
    """

    group: str
    record: Record
    samples: tuple[Sample, ...]


@dataclass(slots=True)
class Score:
    """Sums over the rows of one group; rates are properties. ``None``: not measured.

    Attributes:
        rows: items. tokens: loss tokens. text_bytes: UTF-8 bytes of their text (special tokens have none).
        nll: summed negative log-likelihood of the loss tokens, in nats.
        generated, correct: completions, and those equal to the reference.
        metrics: name -> (sum, weight) of a method whose loss is no likelihood, e.g. preference accuracy.
    """

    rows: int = 0
    tokens: int = 0
    text_bytes: int = 0
    nll: float | None = None
    generated: int = 0
    correct: int = 0
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __add__(self, other: Score) -> Score:
        nll = None if self.nll is None and other.nll is None else (self.nll or 0.0) + (other.nll or 0.0)
        return Score(
            rows=self.rows + other.rows,
            tokens=self.tokens + other.tokens,
            text_bytes=self.text_bytes + other.text_bytes,
            nll=nll,
            generated=self.generated + other.generated,
            correct=self.correct + other.correct,
            metrics=_added(self.metrics, other.metrics),
        )

    @property
    def loss(self) -> float | None:
        """Mean negative log-likelihood per loss token."""
        return None if self.nll is None or self.tokens == 0 else self.nll / self.tokens

    @property
    def perplexity(self) -> float | None:
        """exp(loss); infinite beyond what a float holds."""
        if self.loss is None:
            return None
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """nll / ln 2 / bytes of the loss tokens' text; comparable between tokenizers. The end token's loss counts."""
        return None if self.nll is None or self.text_bytes == 0 else self.nll / math.log(2) / self.text_bytes

    @property
    def means(self) -> dict[str, float]:
        """Weighted mean of each metric with a weight above 0."""
        return with_differences({name: total / weight for name, (total, weight) in self.metrics.items() if weight})

    def as_json(self) -> dict[str, Any]:
        """The measured scores as a JSON object."""
        body: dict[str, Any] = {"rows": self.rows, "tokens": self.tokens, "bytes": self.text_bytes}
        for name in ("loss", "perplexity", "bits_per_byte"):
            value = getattr(self, name)
            if value is not None:
                body[name] = value if math.isfinite(value) else None
        if self.metrics:
            body["metrics"] = self.means
        if self.generated:
            low, high = wilson(self.correct, self.generated)
            body["exact_match"] = {
                "n": self.generated,
                "correct": self.correct,
                "score": self.correct / self.generated,
                "low": low,
                "high": high,
            }
        return body


def _added(a: Sums, b: Sums) -> dict[str, tuple[float, float]]:
    both = {name: (a.get(name, (0.0, 0.0)), b.get(name, (0.0, 0.0))) for name in {**a, **b}}
    return {name: (x[0] + y[0], x[1] + y[1]) for name, (x, y) in both.items()}


@dataclass(slots=True)
class ScoreTable:
    """Scores by group, in order of first appearance."""

    groups: dict[str, Score] = field(default_factory=dict)

    def add(self, group: str, score: Score) -> None:
        """Add ``score`` to the group's."""
        self.groups[group] = self.groups.get(group, Score()) + score

    @property
    def total(self) -> Score:
        """The sum over all groups: every token and every completion has the same weight."""
        return sum(self.groups.values(), start=Score())


def wilson(correct: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval (1927) of a rate correct / n.

    Raises:
        ValueError: n < 1, or not 0 <= correct <= n.
    """
    if n < 1 or not 0 <= correct <= n:
        raise ValueError(f"{correct} of {n}")
    rate, z2 = correct / n, z * z
    center = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    # the ends are exact at 0 and 1; rounding must not move them inside
    return (0.0 if correct == 0 else center - half), (1.0 if correct == n else center + half)


def exact_match(completion: str, reference: str) -> bool:
    """Exact match up to whitespace at the ends and its amount in between."""
    return completion.split() == reference.split()


def split_prompt(record: Record) -> tuple[tuple[Message, ...], Message] | None:
    """The messages of the prompt, and the assistant message that follows as the reference; ``None`` where there is none."""
    if not isinstance(record, Conversation) or len(record.messages) < 2:
        return None
    *prompt, reference = record.messages
    return (tuple(prompt), reference) if reference.role == "assistant" else None


def loss_size(samples: Sequence[Sample], tokenizer: Tokenizer) -> tuple[int, int]:
    """(loss tokens, UTF-8 bytes of their text)."""
    tokens = text_bytes = 0
    for sample in samples:
        ids = sample.labels[sample.labels != IGNORE].tolist()
        tokens += len(ids)
        text_bytes += len(tokenizer.decode(ids, skip_special=True).encode())
    return tokens, text_bytes


def by_group(items: Sequence[Item]) -> dict[str, list[Item]]:
    """Items of each group, in order."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    return groups


def rows_of_batches(samples: Sequence[Sample], batch_size: int) -> Iterator[list[list[Sample]]]:
    """Batches of ``batch_size`` rows with one sample each, of similar length to keep padding low."""
    ordered = sorted(samples, key=len)
    for start in range(0, len(ordered), batch_size):
        yield [[sample] for sample in ordered[start : start + batch_size]]
