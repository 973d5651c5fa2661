"""One step of decoding for rows that share a cache: a pass of the model, a token for every row, draft tokens for the next
pass. Shared by ``batching.py``, which decodes prompts that are known from the start, and ``engine``, which takes requests
at any time.

What a row samples is its own affair: parameters, random stream, counters, history and limits stand in :class:`Row`.

Letters: b rows of a group, w new columns, K columns of the cache, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erniecore.api import UsageError, ops
from erniecore.api.model_files import codec_of
from erniecore_generation.cache import StaticCache
from erniecore_generation.generate import cached_layers
from erniecore_generation.media import PromptMedia, prompt_inputs
from erniecore_generation.passes import Passes, Wanted
from erniecore_generation.sampling import Constraint, History, Ints, Sampling, choose
from erniecore_generation.speculate import Drafter, DraftInputs, NoDraft, SamplingState

#: Columns beyond what rows need, so that rejected draft tokens rarely force a copy of the cache.
SLACK = 32


@dataclass(eq=False, slots=True)
class Row:
    """One completion in progress.

    Attributes:
        ids: prompt and completion so far. limit: tokens that the completion may have.
        stops: tokens that end it, not before ``least`` tokens. stream: random stream.
        index: the owner's number of this row.
        count: tokens of the completion. live: it has not ended. stopped: it ended with a stop token.
        draft_tokens, accepted_tokens: tokens proposed by the drafter, and those of them that were accepted.
        next_ids: the last sampled token, which is not in the cache yet, then draft tokens.
        error: why it ended, where it failed.
        media: what its images add to its prompt; None without images. shift: what they add to the number of a token behind
            the prompt for its position.
    """

    ids: list[int]
    sampling: Sampling
    limit: int
    stops: frozenset[int] = frozenset()
    stream: int = 0
    index: int = 0
    least: int = 0
    constraint: Constraint | None = None
    count: int = 0
    live: bool = True
    stopped: bool = False
    draft_tokens: int = 0
    accepted_tokens: int = 0
    next_ids: list[int] = field(default_factory=list)
    history: History | None = None
    error: Exception | None = None
    media: PromptMedia | None = None
    shift: int = 0

    def __post_init__(self) -> None:
        if self.media is not None:
            self.shift = self.media.shift

    def allowed(self, vocabulary: int) -> NDArray[np.bool_] | None:
        """Bool [V], the tokens that may come next; None: all."""
        found: NDArray[np.bool_] | None = None
        if self.constraint is not None:
            given = np.asarray(self.constraint.allowed())
            if given.dtype == np.uint8:
                given = np.unpackbits(given, bitorder="little", count=vocabulary)
            if given.shape != (vocabulary,):
                raise UsageError(
                    "a constraint is of another vocabulary", found=str(given.shape), expected=f"({vocabulary},)"
                )
            found = given.astype(bool)
        if self.count < self.least and self.stops:
            longer = np.ones(vocabulary, bool) if found is None else found.copy()
            longer[[token for token in self.stops if token < vocabulary]] = False
            # a constraint that is complete has only the end left: it decides
            if found is None or longer.any():
                return longer
        return found

    @contextmanager
    def failing(self) -> Iterator[None]:
        """What is raised within, also by a constraint of others, ends this row."""
        try:
            yield
        except Exception as error:
            self.live, self.error = False, error

    def take(self, token: int) -> None:
        """Add a sampled token."""
        if self.history is not None:
            self.history.add(np.array([token]))
        self.ids.append(token)
        self.count += 1
        self.next_ids = [token]
        self.stopped = token in self.stops
        if self.constraint is not None:
            if not self.stopped:
                self.constraint.accept(token)
            self.stopped = self.stopped or self.constraint.done()
        self.live = not self.stopped and self.count < self.limit


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens that some rows sampled: int64 [b], from logits float32 [b, V]."""

    rows: Sequence[Row]
    tokens: Ints
    logits: NDArray[np.float32]


@dataclass(slots=True)
class Group:
    """Rows that share a cache.

    Attributes:
        rows: finished ones stay until the next compaction.
        mask: int64 [b, K], 1 where a column of the cache holds a token of the row.
    """

    rows: list[Row]
    mask: Ints
    cache: StaticCache

    @property
    def live(self) -> list[int]:
        """Places of the rows that have not ended."""
        return [i for i, row in enumerate(self.rows) if row.live]


class Stepper:
    """Runs a model in evaluation mode for groups of rows.

    Args:
        growth: the most columns that a compacted cache has room for beyond its rows; None: for all that they may need.
        drafter: proposes draft tokens for speculative decoding, for the same model; None: plain decoding.
        isolate: an error that one row causes (logits that are not finite, a constraint that fails) ends that row, and is
            its ``error``; else it is raised.
    """

    def __init__(
        self,
        model: Any,
        *,
        drafter: Drafter | None = None,
        pad_id: int = 0,
        isolate: bool = False,
        growth: int | None = None,
    ) -> None:
        self.model, self.pad_id, self.isolate, self.growth = model, pad_id, isolate, growth
        self.drafter: Drafter = NoDraft() if drafter is None else drafter
        self.passes = Passes(model)
        self.vocabulary = int(model.architecture["vocab_size"])
        own = int(model.architecture["num_hidden_layers"])
        self.layers = own + self.drafter.layers
        self._cached = [*cached_layers(model), *range(own, self.layers)]

    def group(self, rows: Sequence[Row], capacity: int, *, batch: int = 0) -> Group:
        """Rows before the prefill of their prompts, with an empty cache; ``batch``: its rows, where rows share a prompt."""
        for row in rows:
            if row.sampling.penalized and row.history is None:
                row.history = History([row.ids], self.vocabulary)
        cache = StaticCache(self._cached, capacity, codec_of(self.model))
        return Group(list(rows), np.zeros((batch or len(rows), 0), np.int64), cache)

    def forward(
        self, group: Group, ids: Ints, real: Ints, *, logits: Wanted = "all"
    ) -> tuple[NDArray[np.float32], Any, Ints]:
        """Logits of new columns [b, w], of the last one, or of none; ``Features.residual`` if the drafter needs it; positions."""
        positions = group.mask.sum(1, keepdims=True) + np.cumsum(real, axis=1) - 1
        positions = np.maximum(positions, 0)
        rows = group.rows[:: len(group.rows) // len(ids)]
        places, inputs = prompt_inputs([row.media for row in rows], [row.shift for row in rows], positions, real)
        group.mask = np.concatenate([group.mask, real], axis=1)
        mask = None if group.mask.all() else group.mask
        wanted = self.drafter.layers > 0
        found, residual = self.passes.every(
            ids, places, mask, group.cache, logits=logits, residual=wanted, inputs=inputs
        )
        return found, residual, positions

    def advance(self, group: Group) -> Generator[Sampled, None, None]:
        """One forward pass over the last tokens and the draft tokens of every live row; the cache must have room."""
        w, live = self.width(group), group.live
        ids, real = np.full((len(group.rows), w), self.pad_id, np.int64), np.zeros((len(group.rows), w), np.int64)
        for i in live:
            tokens = group.rows[i].next_ids
            ids[i, : len(tokens)], real[i, : len(tokens)] = tokens, 1
        logits, residual, positions = self.forward(group, ids, real)
        kept = yield from self.decide(group, logits)
        group.mask[:, -w:] *= np.arange(w) < kept[:, None]
        self.draft(group, ids, positions, np.maximum(kept - 1, 0), residual)
        surplus = w - int(kept.max())
        if surplus:
            group.cache.truncate(group.cache.length - surplus)
            group.mask = group.mask[:, :-surplus]

    def width(self, group: Group) -> int:
        """Columns of the next pass."""
        return max(len(group.rows[i].next_ids) for i in group.live)

    def decide(self, group: Group, logits: NDArray[np.float32]) -> Generator[Sampled, None, Ints]:
        """Sample tokens from logits [b, w, V] for as long as they equal the draft tokens; returns how many per row.

        A draft token is accepted where it equals the token that the row samples from p anyway, so with probability
        p(draft). This is the rule of Leviathan et al. (2023, arXiv:2211.17192, section 2.3) for a deterministic draft,
        q = 1; the sampled tokens are exactly those of plain decoding.
        """
        drafts = [row.next_ids[1:] for row in group.rows]
        kept, active = np.zeros(len(group.rows), np.int64), np.array(group.live, np.int64)
        while len(active):
            step = int(kept[active[0]])
            scores = logits[:, step] if len(active) == len(logits) else logits[active, step]
            places = active
            active, tokens = self._sample(group, active, scores)
            kept[active] += 1
            if not len(active):
                break
            rows = [group.rows[i] for i in active]
            agreed = np.zeros(len(active), bool)
            for j, (i, row, token) in enumerate(zip(active.tolist(), rows, tokens.tolist(), strict=True)):
                agreed[j] = step < len(drafts[i]) and drafts[i][step] == token
                row.accepted_tokens += int(agreed[j])
            yield Sampled(rows, tokens, scores if len(active) == len(places) else logits[active, step])
            active = active[agreed & np.array([row.live for row in rows])]
        return kept

    def _sample(self, group: Group, active: Ints, scores: NDArray[np.float32]) -> tuple[Ints, Ints]:
        """The next tokens [b] of the ``active`` rows of a group, added to them; without those that failed."""
        rows, tokens = [group.rows[i] for i in active], np.zeros(len(active), np.int64)
        by_sampling: dict[Sampling, list[int]] = {}
        for j, row in enumerate(rows):
            by_sampling.setdefault(row.sampling, []).append(j)
        for together in by_sampling.values():
            # a view where they stand side by side: logits of a large vocabulary take longer to copy than to look through
            side_by_side = together[-1] - together[0] == len(together) - 1
            at = slice(together[0], together[-1] + 1) if side_by_side else together
            try:
                tokens[at] = self._choose([rows[j] for j in together], scores[at])
            except Exception:
                if not self.isolate:
                    raise
                for j in together:
                    with rows[j].failing():
                        tokens[j] = self._choose([rows[j]], scores[[j]])[0]
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if self.isolate and row.error is None:
                with row.failing():
                    row.take(token)
            elif row.error is None:
                row.take(token)
        good = np.array([row.error is None for row in rows])
        return active[good], tokens[good]

    def _choose(self, rows: Sequence[Row], scores: NDArray[np.float32]) -> Ints:
        """Tokens for rows with the same sampling parameters."""
        sampling, masks = rows[0].sampling, [row.allowed(self.vocabulary) for row in rows]
        allowed = None
        if any(mask is not None for mask in masks):
            allowed = np.stack([np.ones(self.vocabulary, bool) if mask is None else mask for mask in masks])
        histories = [row.history for row in rows if row.history is not None]
        return choose(
            scores,
            sampling,
            step=np.array([row.count for row in rows]),
            streams=np.array([row.stream for row in rows]),
            history=History.joined(histories) if histories else None,
            allowed=allowed,
        )

    def draft(self, group: Group, ids: Ints, positions: Ints, last: Ints, residual: Any) -> None:
        """Add the drafter's tokens to ``next_ids``, as many as each row may still have."""
        rows = group.rows
        if not group.live:
            return
        state = SamplingState(
            [row.sampling for row in rows],
            np.array([row.count for row in rows]),
            np.array([row.stream for row in rows]),
        )
        texts = [row.ids for row in rows]
        inputs = DraftInputs(texts, ids, positions, last, residual, mask_of(group.mask), group.cache)
        for row, tokens in zip(rows, self.drafter.draft(inputs, state), strict=True):
            fitting = tokens[: row.limit - row.count - 1] if row.live else []
            row.next_ids += fitting
            row.draft_tokens += len(fitting)

    def joined(self, group: Group, new: Group) -> Group:
        """A group with the row of ``new`` too: in the place of one that has ended, without moving the others, if there is one
        and the cache has room; else in a new cache."""
        length = max(group.cache.length, new.cache.length)
        ended = next((i for i, row in enumerate(group.rows) if not row.live), None)
        if ended is None or length + max(self.width(group), self.width(new)) > group.cache.capacity:
            return self.packed([group, new])
        group.cache.put(ended, new.cache, length)
        group.mask = np.pad(group.mask, ((0, 0), (0, length - group.mask.shape[1])))
        group.mask[ended] = np.arange(length) >= length - new.cache.length
        group.rows[ended] = new.rows[0]
        return group

    def room(self, rows: Sequence[Row]) -> int:
        """Columns for the tokens that rows may still get."""
        most = max((row.limit - row.count for row in rows), default=0)
        return SLACK + (most if self.growth is None else min(most, self.growth))

    def packed(self, groups: Sequence[Group]) -> Group:
        """The rows of these groups that have not ended, in one compacted cache."""
        kept = [np.array(group.live, np.int64) for group in groups]
        rows = [group.rows[i] for group, keep in zip(groups, kept, strict=True) for i in keep]
        sizes = [group.mask[keep].sum(1) for group, keep in zip(groups, kept, strict=True)]
        K = int(max(size.max(initial=0) for size in sizes))
        parts = []
        for group, keep, size in zip(groups, kept, sizes, strict=True):
            columns = np.zeros((len(keep), K), np.int64)
            columns[np.arange(K) >= K - size[:, None]] = np.nonzero(group.mask[keep])[1]
            parts.append((group.cache, keep, columns))
        room = self.room(rows)
        mask = (np.arange(K) >= K - np.concatenate(sizes)[:, None]).astype(np.int64)
        return Group(rows, mask, StaticCache.packed(parts, K + room))


def mask_of(real: Ints) -> Any:
    """The key mask [b, K] for the model; None where every column is real."""
    return None if real.all() else ops.tensor_of(real)
