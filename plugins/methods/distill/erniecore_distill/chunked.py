"""Likelihood and divergence from hidden states, a chunk of positions at a time: the full logits of neither model exist at
any time. Gradients are those of the formulas, by computing each chunk again when they are needed.

Letters: n learned positions, c those of a chunk, H and J hidden sizes of student and teacher, V vocabulary, k kept tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253

from erniecore.api import ops
from erniecore.api.layers import recompute
from erniecore.api.parallel import ShardedVocabulary
from erniecore_distill.divergences import DIVERGENCES

if TYPE_CHECKING:
    from paddle import Tensor


class Head(NamedTuple):
    """The output matrix [H, V], or [V, H] when ``transposed``, and its bias; see ``CausalLM.head``. On a rank that has a part of
    it, logits are those of all parts."""

    weight: Tensor
    transposed: bool
    bias: Tensor | None

    def logits(self, hidden: Tensor) -> Tensor:
        """[c, H] -> [c, V], float32 (float64 of float64)."""
        sharded: Any = ops.sharded_parameters.of(self.weight)
        compute = sharded.logits if isinstance(sharded, ShardedVocabulary) else ops.head_logits
        logits: Tensor = compute(hidden, self.weight, transposed=self.transposed, bias=self.bias)
        return logits if logits.dtype == paddle.float64 else logits.astype("float32")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared: a divergence of ``DIVERGENCES``, its ``beta``, and the temperature of both models."""

    divergence: str = "forward-kl"
    beta: float = 0.5
    temperature: float = 1.0

    def __call__(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """[n], not yet times temperature²."""
        return DIVERGENCES[self.divergence](log_p, log_q, self.beta)


class Teaching(Protocol):
    """What a teacher says about n positions."""

    def compare(self, rows: slice, logits: Tensor, comparison: Comparison) -> tuple[Tensor, Tensor]:
        """Divergence and most likely token of the teacher, each [c], at ``rows`` for the student's logits [c, V]."""
        ...


@dataclass(frozen=True, slots=True)
class WholeVocabulary:
    """The teacher's hidden states [n, J], without gradients; its logits are made when they are needed."""

    hidden: Tensor
    head: Head

    def compare(self, rows: slice, logits: Tensor, comparison: Comparison) -> tuple[Tensor, Tensor]:
        with paddle.no_grad():
            theirs = self.head.logits(self.hidden[rows]).astype(logits.dtype)
            log_p, best = F.log_softmax(theirs / comparison.temperature, axis=-1), theirs.argmax(axis=-1)
        return comparison(log_p, F.log_softmax(logits / comparison.temperature, axis=-1)), best


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The teacher's most likely tokens, ids int64 [n, k], best first, with their log-probabilities [n, k], and the
    log-probability [n, 1] of all others together; at the temperature of the comparison.

    Both distributions are compared over these k + 1 outcomes. The student's share of the others is the sum over all of
    them, not one minus the rest, which has no digits left where the k tokens have nearly everything. By the data
    processing inequality the result is at most the divergence over the vocabulary; k = V - 1 gives the same.
    """

    ids: Tensor
    log_p: Tensor
    rest: Tensor

    def compare(self, rows: slice, logits: Tensor, comparison: Comparison) -> tuple[Tensor, Tensor]:
        ids, log_p = self.ids[rows], paddle.concat([self.log_p[rows], self.rest[rows]], axis=-1)
        log_q = grouped(F.log_softmax(logits / comparison.temperature, axis=-1), ids)
        return comparison(log_p.astype(log_q.dtype), log_q), ids[:, 0]


def grouped(log_p: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities [c, V] -> [c, k + 1]: of the tokens ``ids`` [c, k], and of all others together."""
    hide = paddle.full(ids.shape, -1e30, log_p.dtype)
    gone = paddle.put_along_axis(paddle.zeros_like(log_p), ids, hide, axis=-1)
    others = paddle.logsumexp(log_p + gone, axis=-1, keepdim=True)
    return paddle.concat([paddle.take_along_axis(log_p, ids, axis=-1), others], axis=-1)


def top_tokens(logits: Tensor, k: int, temperature: float) -> TopTokens:
    """The k most likely tokens of logits [c, V]; ties go to the smaller id, on every device."""
    log_p = F.log_softmax(logits / temperature, axis=-1)
    ids = paddle.argsort(logits, axis=-1, descending=True, stable=True)[:, :k]
    both = grouped(log_p, ids)
    return TopTokens(ids, both[:, :k], both[:, k:])


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices of ``size`` (0: one) that cover ``count`` positions."""
    for start in range(0, count, size or max(count, 1)):
        yield slice(start, min(start + (size or count), count))


def compared(
    hidden: Tensor, head: Head, labels: Tensor, teaching: Teaching, comparison: Comparison, chunk: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over n positions: negative log-likelihood of the labels, divergence (not times temperature²), and how often
    student and teacher find the same token most likely.

    Args:
        hidden: the student's [n, H]. labels: int64 [n]. chunk: positions at a time; 0: all.
    """

    def piece(hidden_cH: Tensor, labels_c: Tensor, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        logits = head.logits(hidden_cH)
        nll = F.cross_entropy(logits, labels_c, reduction="sum")
        divergence, best = teaching.compare(rows, logits, comparison)
        return nll, divergence.sum(), (logits.argmax(axis=-1) == best).astype("float32").sum()

    # of the head, too: where ranks have shards of it, all of them have a gradient to add
    zero = hidden[:0].sum() + head.weight[:0].sum()
    sums = (zero, zero, paddle.zeros([]))
    for rows in chunks(hidden.shape[0], chunk):
        parts = recompute(piece, hidden[rows], labels[rows], rows)
        sums = tuple(total + part for total, part in zip(sums, parts, strict=True))
    return sums
