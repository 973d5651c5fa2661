"""The five objectives as pure functions: from the tokens of a sample and a random generator to what the model reads and what it
is to say of it. numpy only, no model.

Of ERNIE 3.0 (arXiv:2107.02137, section 3.2), c = begin token, s = end token:

* ``kmlm``: ``c x s`` with a share of the tokens hidden, by whole words, phrases and entities; the hidden ones are to be found.
* ``document``: ``x``; the next token, by the module for generation.
* ``reorder``: ``c x1 s x2 s …``, up to m segments of sentences in a random order; which order, of 1! + … + m!.
* ``distance``: ``c a s b s``, two sentences: 0 next to each other, 1 in one document with others between, 2 of two documents.
* ``uktp``: ``c head relation tail s x s``: the relation hidden, to be found from the text; or words of the text, from the triple.

Of hidden units 80 % become the mask token, 10 % random tokens, 10 % stay (arXiv:1810.04805); a relation is always masked.

Letters: n tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from erniecore_ernie3.orders import order_class
from numpy.typing import NDArray

from erniecore.api.method import IGNORE
from erniecore_ernie3_pretrain.config import DISTANCE, DOCUMENT, KMLM, REORDER, UKTP
from erniecore_ernie3_pretrain.encoder import RELATION, SEPARATOR, TEXT, Tokens, usable

Ints = NDArray[np.int64]
#: what hidden units become
MASKED, RANDOM = 0.8, 0.1
ADJACENT, SAME_DOCUMENT, OTHER_DOCUMENT = range(3)


class Foreign(NamedTuple):
    """A sentence of another document: the key of its sample and its ids."""

    key: bytes
    ids: Ints


@dataclass(frozen=True)
class Draw:
    """What the objectives need beside a sample.

    Attributes:
        weights: objective -> weight. length: tokens of an example at most; 0: as many as there are.
        mask_ratio: share of the tokens that are hidden. max_segments: of a paragraph in reordering.
        begin, end, mask: special tokens. ordinary: ids of which random tokens are drawn.
        pool: sentences for pairs of two documents.
    """

    weights: Mapping[str, float]
    length: int
    mask_ratio: float
    max_segments: int
    begin: int
    end: int
    mask: int
    ordinary: Ints
    pool: Sequence[Foreign] = ()


class Example(NamedTuple):
    """What the model reads, int64 [n]; ``labels`` its tokens to be found, IGNORE elsewhere; ``choice`` the class of the whole, or
    -1."""

    task: str
    ids: Ints
    labels: Ints
    choice: int = -1


def task_of(tokens: Tokens, weights: Mapping[str, float], rng: np.random.Generator) -> str:
    """One of the objectives that can use the sample, by their weights; the encoder keeps no sample that none can use."""
    able = usable(tokens.part, tokens.sentence)
    chances = np.array([weights[task] for task in able])
    return able[int(np.searchsorted(np.cumsum(chances), rng.random() * chances.sum(), side="right"))]


def example_of(task: str, tokens: Tokens, labels: Ints, key: bytes, draw: Draw, rng: np.random.Generator) -> Example:
    """The example of an objective; ``labels`` are the next tokens, ``key`` is the sample's own."""
    if task == DOCUMENT:
        return Example(task, tokens.ids, labels)
    if task == DISTANCE:
        return distance(tokens, key, draw, rng)
    makers: Mapping[str, Callable[[Tokens, Draw, np.random.Generator], Example]] = {
        KMLM: masked,
        REORDER: reordered,
        UKTP: knowledge,
    }
    return makers[task](tokens, draw, rng)


def hide(ids: Ints, units: Ints, draw: Draw, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """(ids, labels) with units hidden in random order until they have ``mask_ratio`` of the tokens that belong to one, as near as
    whole units come to it; at least one unit. Tokens of unit -1 stay."""
    out, labels = ids.copy(), np.full(len(ids), IGNORE, np.int64)
    names, counts = np.unique(units[units >= 0], return_counts=True)
    wanted, done = draw.mask_ratio * counts.sum(), 0
    for i in rng.permutation(len(names)):
        if done and done + counts[i] / 2 > wanted:
            break
        where = np.flatnonzero(units == names[i])
        labels[where] = ids[where]
        done += len(where)
        lot = rng.random()
        if lot < MASKED:
            out[where] = draw.mask
        elif lot < MASKED + RANDOM:
            out[where] = rng.choice(draw.ordinary, len(where))
    return out, labels


def masked(tokens: Tokens, draw: Draw, rng: np.random.Generator) -> Example:
    """Knowledge-masked language modeling over a window of the text."""
    where = np.flatnonzero(tokens.part == TEXT)
    start, stop = _window(len(where), draw.length - 2 if draw.length else 0, rng)
    chosen = where[start:stop]
    ids, labels = hide(tokens.ids[chosen], tokens.unit[chosen], draw, rng)
    return Example(KMLM, *_framed(draw, (ids, labels)))


def knowledge(tokens: Tokens, draw: Draw, rng: np.random.Generator) -> Example:
    """Universal knowledge-text prediction: with equal chances the relation or words of the text are hidden."""
    text = np.flatnonzero(tokens.part == TEXT)
    fact = np.flatnonzero((tokens.part != TEXT) & (tokens.part != SEPARATOR))
    if draw.length:
        text = text[: max(1, draw.length - len(fact) - 3)]
    relation = rng.random() < 0.5
    ids, labels = tokens.ids[fact].copy(), np.full(len(fact), IGNORE, np.int64)
    words, targets = tokens.ids[text], np.full(len(text), IGNORE, np.int64)
    if relation:
        hidden = tokens.part[fact] == RELATION
        labels[hidden], ids[hidden] = ids[hidden], draw.mask
    else:
        words, targets = hide(words, tokens.unit[text], draw, rng)
    return Example(UKTP, *_framed(draw, (ids, labels), (words, targets)))


def reordered(tokens: Tokens, draw: Draw, rng: np.random.Generator) -> Example:
    """Sentence reordering: sentences in a row that fit, as 1 to m segments, shuffled."""
    groups = _sentences(tokens)
    room = draw.length - 1 - draw.max_segments if draw.length else 0
    chosen = _fitting(groups[int(rng.integers(len(groups) - 1)) :], room)  # never the last sentence alone
    count = int(rng.integers(1, min(draw.max_segments, len(chosen)) + 1))
    cuts = np.sort(rng.permutation(len(chosen) - 1)[: count - 1]) + 1
    segments = [np.concatenate(list(part)) for part in _split(chosen, [int(cut) for cut in cuts])]
    order = [int(place) for place in rng.permutation(count)]
    shuffled = [tokens.ids[segments[place]] for place in order]
    ids, labels = _framed(draw, *((one, np.full(len(one), IGNORE, np.int64)) for one in shuffled))
    return Example(REORDER, ids, labels, order_class(order))


def distance(tokens: Tokens, key: bytes, draw: Draw, rng: np.random.Generator) -> Example:
    """Sentence distance: each class that the sample and the pool allow has the same chance."""
    groups = _sentences(tokens)
    others = [one for one in draw.pool if one.key != key]
    classes = [ADJACENT, *([SAME_DOCUMENT] if len(groups) > 2 else []), *([OTHER_DOCUMENT] if others else [])]
    choice = classes[int(rng.integers(len(classes)))]
    if choice == SAME_DOCUMENT:
        pairs = [(i, j) for i in range(len(groups)) for j in range(i + 2, len(groups))]
        i, j = pairs[int(rng.integers(len(pairs)))]
        second = tokens.ids[groups[j]]
    elif choice == ADJACENT:
        i = int(rng.integers(len(groups) - 1))
        second = tokens.ids[groups[i + 1]]
    else:
        i, second = int(rng.integers(len(groups))), others[int(rng.integers(len(others)))].ids
    most = (draw.length - 3) // 2 if draw.length else None
    pair = (tokens.ids[groups[i]][:most], second[:most])
    ids, labels = _framed(draw, *((one, np.full(len(one), IGNORE, np.int64)) for one in pair))
    return Example(DISTANCE, ids, labels, choice)


def _window(count: int, length: int, rng: np.random.Generator) -> tuple[int, int]:
    """A stretch of at most ``length`` (0: all) of ``count``, anywhere."""
    if not length or count <= length:
        return 0, count
    start = int(rng.integers(count - length + 1))
    return start, start + length


def _sentences(tokens: Tokens) -> list[Ints]:
    """Where the tokens of each sentence are."""
    return [np.flatnonzero(tokens.sentence == one) for one in np.unique(tokens.sentence[tokens.sentence >= 0])]


def _fitting(groups: Sequence[Ints], room: int) -> list[Ints]:
    """As many of the groups, from the first on, as fit into ``room`` tokens (0: all); at least two, each cut to half then."""
    kept, left = [], room
    for where in groups:
        if room and len(where) > left:
            break
        kept.append(where)
        left -= len(where)
    return kept if len(kept) > 1 else [where[: room // 2] for where in groups[:2]] if room else list(groups)


def _split(groups: Sequence[Ints], cuts: Sequence[int]) -> list[Sequence[Ints]]:
    return [groups[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(groups)], strict=True)]


def _framed(draw: Draw, *parts: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Begin token, then each of the parts (ids, labels) with the end token behind it."""
    none = np.full(1, IGNORE, np.int64)
    ids, labels = [np.array([draw.begin])], [none]
    for part, targets in parts:
        ids += [part, np.array([draw.end])]
        labels += [targets, none]
    return np.concatenate(ids).astype(np.int64), np.concatenate(labels)
