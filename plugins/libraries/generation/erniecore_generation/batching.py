"""Continuous batching: sequences decode together, and a waiting prompt takes the slot of a sequence that has ended.

A sequence does not depend on the others in its batch beyond rounding: it attends to its own columns of the cache and
samples from its own random stream, counted by its own tokens. Speculative decoding (``speculate.py``) changes nothing but
the time: the model verifies draft tokens in one pass, and a draft token is accepted where it is the token that would have
been sampled anyway. Token ids only: text is ``respond.py``, sampling ``sampling.py``.

Letters: R sequences (rows) in all, b rows decoded now, w new columns, K columns of the cache, H hidden, V vocabulary.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from numpy.typing import NDArray

from erniecore.api.model_files import codec_of
from erniecore_generation.cache import StaticCache
from erniecore_generation.generate import check_prompt, pad_left
from erniecore_generation.passes import Passes
from erniecore_generation.sampling import History, Ints, Sampling, choose
from erniecore_generation.speculate import Drafter, DraftInputs, NoDraft, SamplingState

#: Columns beyond what rows need, so that rejected draft tokens rarely force a copy of the cache.
SLACK = 32


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tokens that some rows sampled in one step.

    Attributes:
        rows, tokens: int64 [b]. logits: float32 [b, V] that the tokens were sampled from.
    """

    rows: Ints
    tokens: Ints
    logits: NDArray[np.float32]


@dataclass(slots=True)
class _Group:
    """Rows that share a cache.

    Attributes:
        rows: int64 [b] of the pool; finished ones stay until the next compaction.
        mask: int64 [b, K], 1 where a column of the cache holds a token of the row.
        next_ids: per row the last sampled token, which is not in the cache yet, then draft tokens.
    """

    rows: Ints
    mask: Ints
    cache: StaticCache
    history: History | None
    next_ids: list[list[int]]


class Pool:
    """Decodes any number of prompts, ``slots`` rows at a time.

    Args:
        model: a ``CausalLM`` in evaluation mode.
        prompts: ids, without padding.
        max_new_tokens: of every row, or one number per prompt.
        stop_ids: tokens that end a row; the token itself still belongs to the row.
        streams: random stream of each row; default: its index.
        copies: rows per prompt, next to each other; the prompt is read once for all of them. R = prompts * copies.
        slots: rows decoded together, at least one prompt's copies; 0: all.
        drafter: proposes draft tokens for speculative decoding, for the same model; None: plain decoding.

    Attributes:
        live: bool [R], rows that have not ended. stopped: bool [R], those that ended with a stop token.
        ids: per row prompt and completion so far. counts: int64 [R], tokens of the completion.
        draft_tokens, accepted_tokens: int64 [R], tokens proposed by the drafter, and those of them that were accepted.
        started: ``time.perf_counter`` at the start of each row's prefill.

    Raises:
        UsageError: a prompt that is empty or leaves no room, before any work.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        max_new_tokens: int | Sequence[int],
        stop_ids: Collection[int] = (),
        pad_id: int = 0,
        streams: Sequence[int] | None = None,
        copies: int = 1,
        slots: int = 0,
        drafter: Drafter | None = None,
    ) -> None:
        limits = np.broadcast_to(np.asarray(max_new_tokens, np.int64), len(prompts))
        for ids, limit in zip(prompts, limits.tolist(), strict=True):
            row = np.asarray([ids], np.int64)
            check_prompt(row, np.ones_like(row), model.architecture, limit)
        R = len(prompts) * copies
        self.model, self.sampling, self.pad_id = model, sampling, pad_id
        self.ids = [list(ids) for ids in prompts for _ in range(copies)]
        self.live, self.stopped, self.counts = np.ones(R, bool), np.zeros(R, bool), np.zeros(R, np.int64)
        self.draft_tokens, self.accepted_tokens, self.started = (
            np.zeros(R, np.int64),
            np.zeros(R, np.int64),
            np.zeros(R),
        )
        self._limits, self._stops = np.repeat(limits, copies), frozenset(stop_ids)
        self._streams = np.arange(R) if streams is None else np.asarray(streams)
        self._copies, self._slots = copies, max(copies, slots or R)
        self._waiting = deque(range(len(prompts)))
        self._drafter: Drafter = NoDraft() if drafter is None else drafter
        self._group: _Group | None = None
        self._passes = Passes(model)

    def run(self) -> Iterator[Chosen]:
        """Decode all prompts. Between two results the caller may :meth:`finish` rows.

        Raises ``NumericsError`` for logits that are not finite."""
        while True:
            busy = 0 if self._group is None else int(self.live[self._group.rows].sum())
            free = self._slots - busy
            # prompts are prefilled together, once a quarter of the slots is free
            if not busy:
                self._group = None
            if self._waiting and free >= self._copies and (not busy or 4 * free >= self._slots):
                yield from self._admit(free // self._copies)
                continue
            if self._group is not None and busy:
                yield from self._advance(self._group, busy)
            else:
                return

    def finish(self, row: int) -> None:
        """End a row for a reason of the caller's (a stop string)."""
        self.live[row] = False

    def completion_ids(self, row: int) -> Ints:
        """int64 [n], the completion of a row so far."""
        return np.array(self.ids[row][len(self.ids[row]) - int(self.counts[row]) :], np.int64)

    def _admit(self, most: int) -> Iterator[Chosen]:
        """Prefill waiting prompts, sample their first tokens, and add them to the batch."""
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        rows = np.array([p * self._copies + c for p in taken for c in range(self._copies)], np.int64)
        self.started[rows] = time.perf_counter()
        ids, real = pad_left([self.ids[p * self._copies] for p in taken], self.pad_id)
        group = self._new_group(rows, ids)
        logits, residual, positions = self._forward(group, ids, real, last=True)
        if self._copies > 1:
            copied = np.repeat(np.arange(len(taken)), self._copies)
            columns = np.broadcast_to(np.arange(ids.shape[1]), (len(rows), ids.shape[1]))
            group.cache = StaticCache.packed([(group.cache, copied, columns)], group.cache.capacity)
            group.mask, ids, positions, logits = group.mask[copied], ids[copied], positions[copied], logits[copied]
            residual = residual if residual is None else paddle.index_select(residual, paddle.to_tensor(copied))
        yield from self._decide(group, logits)
        self._draft(group, ids, positions, np.full(len(rows), ids.shape[1] - 1), residual)
        self._group = group if self._group is None else self._packed([self._group, group])

    def _new_group(self, rows: Ints, ids: Ints) -> _Group:
        """Rows before the prefill of their prompts [P, S]. The cache has room for the completions if there is no other group
        to merge with."""
        layers, history = int(self.model.architecture["num_hidden_layers"]) + self._drafter.layers, None
        room = int(self._limits[rows].max()) + SLACK if self._group is None else 0
        if self.sampling.penalized:
            history = History([self.ids[row] for row in rows], int(self.model.architecture["vocab_size"]))
        cache = StaticCache(layers, ids.shape[1] + room, codec_of(self.model))
        mask = np.zeros((len(ids), 0), np.int64)
        return _Group(rows, mask, cache, history, [[] for _ in rows])

    def _advance(self, group: _Group, busy: int) -> Iterator[Chosen]:
        """One forward pass over the last tokens and the draft tokens."""
        w = max(len(group.next_ids[i]) for i in np.flatnonzero(self.live[group.rows]))
        if 2 * busy <= len(group.rows) or group.cache.length + w > group.cache.capacity:
            # compacting the cache pays off when half of the rows have ended
            group = self._group = self._packed([group])
        ids, real = np.full((len(group.rows), w), self.pad_id, np.int64), np.zeros((len(group.rows), w), np.int64)
        for i in np.flatnonzero(self.live[group.rows]):
            tokens = group.next_ids[i]
            ids[i, : len(tokens)], real[i, : len(tokens)] = tokens, 1
        logits, residual, positions = self._forward(group, ids, real, last=False)
        kept = yield from self._decide(group, logits)
        group.mask[:, -w:] *= np.arange(w) < kept[:, None]
        self._draft(group, ids, positions, np.maximum(kept - 1, 0), residual)
        surplus = w - int(kept.max())
        if surplus:
            group.cache.truncate(group.cache.length - surplus)
            group.mask = group.mask[:, :-surplus]

    def _forward(self, group: _Group, ids: Ints, real: Ints, *, last: bool) -> tuple[NDArray[np.float32], Any, Ints]:
        """Logits of new columns [b, w], or of the last one; ``Features.residual`` if the drafter needs it; positions."""
        positions = group.mask.sum(1, keepdims=True) + np.cumsum(real, axis=1) - 1
        positions = np.maximum(positions, 0)
        group.mask = np.concatenate([group.mask, real], axis=1)
        mask = None if group.mask.all() else group.mask
        wanted = self._drafter.layers > 0
        logits, residual = self._passes.every(ids, positions, mask, group.cache, last=last, residual=wanted)
        return logits, residual, positions

    def _decide(self, group: _Group, logits: NDArray[np.float32]) -> Generator[Chosen, None, Ints]:
        """Sample tokens from logits [b, w, V] for as long as they equal the draft tokens; returns how many per row.

        A draft token is accepted where it equals the token that the row samples from p anyway, so with probability
        p(draft). This is the rule of Leviathan et al. (2023, arXiv:2211.17192, section 2.3) for a deterministic draft,
        q = 1; the sampled tokens are exactly those of plain decoding.
        """
        drafts = [tokens[1:] for tokens in group.next_ids]
        kept, active = np.zeros(len(group.rows), np.int64), np.flatnonzero(self.live[group.rows])
        while len(active):
            rows, step = group.rows[active], int(kept[active[0]])
            scores = logits[active, step]
            history = None if group.history is None else group.history.at(active)
            chosen = choose(scores, self.sampling, step=self.counts[rows], streams=self._streams[rows], history=history)
            if group.history is not None:
                group.history.add(chosen, active)
            kept[active] += 1
            self.counts[rows] += 1
            for i, row, token in zip(active.tolist(), rows.tolist(), chosen.tolist(), strict=True):
                self.ids[row].append(token)
                self.stopped[row] = token in self._stops
                self.live[row] = not self.stopped[row] and self.counts[row] < self._limits[row]
                group.next_ids[i] = [token]
            agreed = [step < len(drafts[i]) and drafts[i][step] == t for i, t in zip(active, chosen, strict=True)]
            self.accepted_tokens[rows] += agreed
            yield Chosen(rows, chosen, scores)
            active = active[np.array(agreed) & self.live[rows]]
        return kept

    def _draft(self, group: _Group, ids: Ints, positions: Ints, last: Ints, residual: Any) -> None:
        """Add the drafter's tokens to ``next_ids``, as many as each row may still have."""
        rows = group.rows
        if not self.live[rows].any():
            return
        room = np.where(self.live[rows], self._limits[rows] - self.counts[rows] - 1, 0)
        texts = [self.ids[row] for row in rows]
        state = SamplingState(self.sampling, self.counts[rows], self._streams[rows])
        inputs = DraftInputs(texts, ids, positions, last, residual, mask_of(group.mask), group.cache)
        for i, tokens in enumerate(self._drafter.draft(inputs, state)):
            fitting = tokens[: int(room[i])]
            group.next_ids[i] += fitting
            self.draft_tokens[rows[i]] += len(fitting)

    def _packed(self, groups: Sequence[_Group]) -> _Group:
        """The rows of these groups that have not ended, in one compacted cache."""
        kept = [np.flatnonzero(self.live[group.rows]) for group in groups]
        rows = np.concatenate([group.rows[keep] for group, keep in zip(groups, kept, strict=True)])
        sizes = [group.mask[keep].sum(1) for group, keep in zip(groups, kept, strict=True)]
        K = int(max(size.max(initial=0) for size in sizes))
        parts = []
        for group, keep, size in zip(groups, kept, sizes, strict=True):
            columns = np.zeros((len(keep), K), np.int64)
            columns[np.arange(K) >= K - size[:, None]] = np.nonzero(group.mask[keep])[1]
            parts.append((group.cache, keep, columns))
        room = int((self._limits[rows] - self.counts[rows]).max(initial=0)) + SLACK
        mask = (np.arange(K) >= K - np.concatenate(sizes)[:, None]).astype(np.int64)
        histories = [group.history.at(keep) for group, keep in zip(groups, kept, strict=True) if group.history]
        next_ids = [group.next_ids[i] for group, keep in zip(groups, kept, strict=True) for i in keep]
        history = History.joined(histories) if histories else None
        return _Group(rows, mask, StaticCache.packed(parts, K + room), history, next_ids)


def mask_of(real: Ints) -> Any:
    """The key mask [b, K] for the model; None where every column is real."""
    return None if real.all() else paddle.to_tensor(real)
