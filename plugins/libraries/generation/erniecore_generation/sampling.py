"""From logits to the next token: penalties, truncation (top-k, top-p, min-p) and sampling, as pure numpy functions.

numpy on the host on purpose: results are the same whatever device computed the logits. Random numbers come from a
counter-based generator keyed by (seed, stream, step), so a sequence does not depend on the rest of the batch. This module
knows nothing of models or text. Letters: B batch size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from erniecore.api import NumericsError, UsageError

Floats: TypeAlias = NDArray[np.floating[Any]]
Ints: TypeAlias = NDArray[np.int64]

#: Tokens among which a nucleus is looked for before the whole vocabulary is sorted.
HEAD = 1024


class Constraint(Protocol):
    """Which tokens may come next, for output with a structure. One object serves one completion."""

    def allowed(self) -> NDArray[Any]:
        """Bool [V], or the same as bits in bytes, uint8 [ceil(V / 8)], the lowest bit first."""
        ...

    def accept(self, token: int) -> None:
        """Take notice of the next token. Raises ``ValueError`` for one that is not allowed."""
        ...

    def done(self) -> bool:
        """Whether the completion is complete; nothing is generated after it."""
        ...


class SamplingOptions(TypedDict, total=False):
    """The fields of :class:`Sampling` as keywords."""

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The defaults are greedy.

    The order is fixed: repetition penalty, frequency and presence penalties, temperature, top-k, top-p, min-p.

    Attributes:
        do_sample: sample from the distribution; otherwise take the most likely token (after the penalties).
        temperature: divides the logits; 0 means greedy.
        top_k: keep the k most likely tokens; 0 or more than V keeps all.
        top_p: keep the smallest set of most likely tokens with at least this cumulative probability.
        min_p: keep tokens with at least this fraction of the most likely token's probability.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or completion.
        frequency_penalty: subtracted once per earlier occurrence in the completion.
        presence_penalty: subtracted from every token that the completion contains already.
        logit_bias: (token id, number that is added to its logit), each id once.
        seed: of the random stream.

    Raises:
        UsageError: a value outside its range; names the field.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        rules = (
            ("temperature", self.temperature >= 0, "a number >= 0 (0 is greedy)"),
            ("top_k", self.top_k >= 0, "a whole number >= 0 (0 keeps all)"),
            ("top_p", 0 <= self.top_p <= 1, "a number from 0 to 1"),
            ("min_p", 0 <= self.min_p <= 1, "a number from 0 to 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "a number > 0 (1 is off)"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "a number from -2 to 2"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "a number from -2 to 2"),
            ("logit_bias", _is_bias(self.logit_bias), "pairs of a token id >= 0, each once, and a finite number"),
            ("seed", 0 <= self.seed < 2**63, "a whole number from 0 to 2**63 - 1"),
        )
        for name, valid, expected in rules:
            if not valid:
                raise UsageError(
                    "sampling value out of range", where=name, found=f"{getattr(self, name)!r}", expected=expected
                )

    @property
    def greedy(self) -> bool:
        """Whether no random number is needed."""
        return not self.do_sample or self.temperature == 0

    @property
    def penalized(self) -> bool:
        """Whether any penalty is on, so that the history of a sequence is needed."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)


def _is_bias(pairs: tuple[tuple[int, float], ...]) -> bool:
    ids = [token for token, _ in pairs]
    return len(set(ids)) == len(ids) and all(token >= 0 and np.isfinite(bias) for token, bias in pairs)


class History:
    """Token counts of each sequence so far; only built when a penalty needs them.

    Attributes:
        prompt: bool [B, V], token occurs in the prompt.
        completion: int32 [B, V], occurrences in the completion.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
        self.prompt = np.zeros((len(prompts), vocab_size), dtype=bool)
        self.completion = np.zeros((len(prompts), vocab_size), dtype=np.int32)
        for row, ids in enumerate(prompts):
            self.prompt[row, np.asarray(ids, dtype=np.int64)] = True

    def add(self, tokens: Ints, rows: Ints | None = None) -> None:
        """Count one new token of every row, [B], or of each of ``rows``."""
        self.completion[np.arange(len(tokens)) if rows is None else rows, tokens] += 1

    def at(self, rows: Ints) -> History:
        """A copy of these rows."""
        found = History((), self.prompt.shape[1])
        found.prompt, found.completion = self.prompt[rows], self.completion[rows]
        return found

    @classmethod
    def joined(cls, parts: Sequence[History]) -> History:
        """All rows of ``parts``."""
        found = cls((), parts[0].prompt.shape[1])
        found.prompt = np.concatenate([part.prompt for part in parts])
        found.completion = np.concatenate([part.completion for part in parts])
        return found

    def keep(self, rows: Ints) -> None:
        """Drop all rows but these, in this order."""
        self.prompt, self.completion = self.prompt[rows], self.completion[rows]


def penalize_repetition(logits: Floats, seen: NDArray[np.bool_], penalty: float) -> Floats:
    """Keskar et al. 2019 (CTRL), with the sign rule: x / penalty if x > 0 else x * penalty where ``seen`` [B, V]."""
    return np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalize_counts(logits: Floats, counts: NDArray[np.integer[Any]], frequency: float, presence: float) -> Floats:
    """x - frequency * count - presence * [count > 0]; ``counts`` [B, V] of the completion so far."""
    result: Floats = logits - frequency * counts - presence * (counts > 0)
    return result


def scale_temperature(logits: Floats, temperature: float) -> Floats:
    """x / temperature, for temperature > 0, shifted so that the largest is 0 (so a tiny temperature stays finite)."""
    shifted: Floats = (logits - logits.max(axis=-1, keepdims=True)) / temperature
    return shifted


def keep_top_k(logits: Floats, k: int) -> Floats:
    """-inf for all but the k largest of each row; of equal logits the lower ids stay. k = 0 or k >= V: unchanged."""
    vocab = logits.shape[-1]
    if k == 0 or k >= vocab:
        return logits
    edge = np.partition(logits, vocab - k, axis=-1)[:, vocab - k, None]
    above, ties = logits > edge, logits == edge
    wanted = k - above.sum(axis=-1, keepdims=True)
    return np.where(above | (ties & (np.cumsum(ties, axis=-1) <= wanted)), logits, -np.inf)


def keep_top_p(logits: Floats, p: float) -> Floats:
    """Nucleus sampling (Holtzman et al. 2020): the smallest set of most likely tokens with total probability >= p.

    The most likely token always stays; of equal logits the lower ids come first; p = 1 leaves all unchanged.
    """
    if p >= 1:
        return logits
    probabilities = softmax(logits)
    kept = np.zeros(logits.shape, dtype=bool)
    for row, (scores, shares) in enumerate(zip(logits, probabilities, strict=True)):
        kept[row, _nucleus(scores, shares, p)] = True
    result: Floats = np.where(kept, logits, -np.inf)
    return result


def _nucleus(logits: Floats, probabilities: NDArray[np.float64], p: float) -> Ints:
    """The tokens that :func:`keep_top_p` keeps of one row [V]. Only the most likely ones are sorted, as long as they surely
    have the probability ``p``: sums are those over the whole row in order, so the result is the same to the bit."""
    vocab = len(logits)
    places = np.flatnonzero(logits > -np.inf)  # behind these there is no probability at all
    if len(places) > HEAD:
        head = np.flatnonzero(logits >= np.partition(logits, vocab - HEAD)[vocab - HEAD])
        # rounding of a sum of V probabilities is far below this
        if probabilities[head].sum() - probabilities[head].min() > p + 1e-6:
            places = head
    order = places[np.argsort(-logits[places], kind="stable")]
    ranked = probabilities[order]
    kept = np.cumsum(ranked) - ranked < p
    kept[0] = True
    found: Ints = order[kept]
    return found


def keep_min_p(logits: Floats, p: float) -> Floats:
    """-inf where probability < p * the row's largest probability (Nguyen et al. 2024); the largest always stays."""
    if p == 0:
        return logits
    edge = logits.max(axis=-1, keepdims=True) + np.log(p)
    return np.where(logits >= edge, logits, -np.inf)


def softmax(logits: Floats) -> NDArray[np.float64]:
    """float64 probabilities along the last axis."""
    wide = logits.astype(np.float64)
    exp = np.exp(wide - wide.max(axis=-1, keepdims=True))
    result: NDArray[np.float64] = exp / exp.sum(axis=-1, keepdims=True)
    return result


def uniforms(seed: int, streams: Sequence[int] | Ints, step: int | Ints) -> NDArray[np.float64]:
    """One number in [0, 1) per stream: Philox (Salmon et al. 2011) with key (seed, stream) and counter ``step``, one for
    all or one per stream."""
    steps = np.broadcast_to(step, len(streams)).tolist()
    philox = [np.random.Philox(key=[seed, int(s)], counter=[0, at, 0, 0]) for s, at in zip(streams, steps, strict=True)]
    return np.array([np.random.Generator(numbers).random() for numbers in philox])


def draw(probabilities: NDArray[np.float64], numbers: NDArray[np.float64]) -> Ints:
    """Inverse of the cumulative distribution: int64 [B]. A token of probability 0 is never drawn."""
    cumulative = np.cumsum(probabilities, axis=-1)
    target = numbers[:, None] * cumulative[:, -1:]
    chosen = (cumulative <= target).sum(axis=-1)
    # a number next to 1 can round up to the total: then take the last token that has a probability
    last = probabilities.shape[-1] - 1 - np.argmax(probabilities[:, ::-1] > 0, axis=-1)
    result: Ints = np.minimum(chosen, last).astype(np.int64)
    return result


def choose(
    logits: Floats,
    sampling: Sampling,
    *,
    step: int | Ints = 0,
    streams: Sequence[int] | Ints = (),
    history: History | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> Ints:
    """The next token of each row, int64 [B].

    Args:
        logits: [B, V] of the last position.
        step, streams: counter (one per row or one for all) and stream number per row of the random numbers; unused when
            greedy.
        history: needed when ``sampling.penalized``.
        allowed: bool [B, V], tokens that may be chosen; None: all.

    Raises:
        NumericsError: logits that are NaN or +inf, or a row without any finite logit. UsageError: no token is allowed, or
            the bias of a token that is not in the vocabulary.
    """
    best: Ints = np.argmax(logits, axis=-1).astype(np.int64)
    top = np.take_along_axis(logits, best[:, None], axis=-1)[:, 0]
    if not np.isfinite(top).all():
        row = int(np.argmin(np.isfinite(top)))
        where = f"row {row}, step {np.broadcast_to(step, len(top))[row]}"
        raise NumericsError("the model's logits are not finite", where=where, found=str(top[row]))
    scores = _steered(logits, sampling, allowed)
    if sampling.greedy and scores is logits and not sampling.penalized:
        return best
    if sampling.penalized and history is not None:
        scores = scores.astype(np.float64)
        scores = penalize_repetition(scores, history.prompt | (history.completion > 0), sampling.repetition_penalty)
        scores = penalize_counts(scores, history.completion, sampling.frequency_penalty, sampling.presence_penalty)
    if sampling.greedy:
        steered: Ints = np.argmax(scores, axis=-1).astype(np.int64)
        return steered
    scores = scale_temperature(scores.astype(np.float64), sampling.temperature)
    scores = keep_min_p(keep_top_p(keep_top_k(scores, sampling.top_k), sampling.top_p), sampling.min_p)
    return draw(softmax(scores), uniforms(sampling.seed, streams, step))


def _steered(logits: Floats, sampling: Sampling, allowed: NDArray[np.bool_] | None) -> Floats:
    """Logits [B, V] with the biases of tokens, and -inf where a token is not allowed."""
    scores = logits
    if sampling.logit_bias:
        ids = np.array([token for token, _ in sampling.logit_bias], np.int64)
        if ids.max() >= logits.shape[-1]:
            raise UsageError(
                "token id outside the vocabulary",
                where="logit_bias",
                found=str(ids.max()),
                expected=f"0 to {logits.shape[-1] - 1}",
            )
        scores = scores.astype(np.float64)
        scores[:, ids] += np.array([bias for _, bias in sampling.logit_bias])
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
        if not np.isfinite(scores.max(axis=-1)).all():
            raise UsageError("no token is allowed", found=f"{int(allowed.sum(axis=-1).min())} of {logits.shape[-1]}")
    return scores
