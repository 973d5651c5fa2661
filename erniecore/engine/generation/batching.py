"""Continuous batching: prompts wait, rows decode together, and whoever ends makes room for the next prompt.

A row's tokens do not depend on its neighbours beyond rounding: it attends to its own columns of the cache and draws from
its own random stream, counted by its own tokens. Several tokens per step (``speculate.py``) change nothing but the time:
the model checks guesses in one pass, and a guess stays where it is the token that would have been chosen anyway. Ids only:
text is ``respond.py``, choosing a token ``sampling.py``.

Letters: R rows in all, b rows decoded now, w new columns, K columns of the cache, H hidden, V vocabulary.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from erniecore.engine.generation.cache import StaticCache, codec_of
from erniecore.engine.generation.generate import check_prompt, pad_left
from erniecore.engine.generation.passes import Passes
from erniecore.engine.generation.sampling import History, Ints, Sampling, choose
from erniecore.engine.generation.speculate import Draw, Guesser, NoGuesses, Seen

#: Columns beyond what rows need, so that rejected guesses rarely make the cache move.
SLACK = 32


@dataclass(frozen=True, slots=True)
class Chosen:
    """What some rows chose at the same time.

    Attributes:
        rows, tokens: int64 [b]. logits: float32 [b, V] that the tokens were chosen from.
    """

    rows: Ints
    tokens: Ints
    logits: NDArray[np.float32]


@dataclass(slots=True)
class _Group:
    """Rows that share a cache.

    Attributes:
        rows: int64 [b] of the pool; ended ones stay until the next packing.
        mask: int64 [b, K], 1 where a column of the cache holds a token of the row.
        next_ids: per row the last chosen token, which is not in the cache yet, then guesses of what follows.
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
        guesser: guesses tokens ahead; it must know the same model.

    Attributes:
        live: bool [R], rows that have not ended. stopped: bool [R], those that ended with a stop token.
        ids: per row prompt and answer so far. counts: int64 [R], tokens of the answer.
        guessed, right: int64 [R], tokens that were guessed ahead, and those among them that were chosen.
        started: when each row was taken up, as ``time.perf_counter`` has it.

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
        guesser: Guesser | None = None,
    ) -> None:
        limits = np.broadcast_to(np.asarray(max_new_tokens, np.int64), len(prompts))
        for ids, limit in zip(prompts, limits.tolist(), strict=True):
            row = np.asarray([ids], np.int64)
            check_prompt(row, np.ones_like(row), model.architecture, limit)
        R = len(prompts) * copies
        self.model, self.sampling, self.pad_id = model, sampling, pad_id
        self.ids = [list(ids) for ids in prompts for _ in range(copies)]
        self.live, self.stopped, self.counts = np.ones(R, bool), np.zeros(R, bool), np.zeros(R, np.int64)
        self.guessed, self.right, self.started = np.zeros(R, np.int64), np.zeros(R, np.int64), np.zeros(R)
        self._limits, self._stops = np.repeat(limits, copies), frozenset(stop_ids)
        self._streams = np.arange(R) if streams is None else np.asarray(streams)
        self._copies, self._slots = copies, max(copies, slots or R)
        self._waiting = deque(range(len(prompts)))
        self._guesser: Guesser = NoGuesses() if guesser is None else guesser
        self._group: _Group | None = None
        self._passes = Passes(model)

    def run(self) -> Iterator[Chosen]:
        """Decode everything. Between two results the caller may :meth:`finish` rows.

        Raises ``NumericsError`` for logits that are not finite."""
        while True:
            busy = 0 if self._group is None else int(self.live[self._group.rows].sum())
            free = self._slots - busy
            # a few rows at once share the pass over their prompts
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

    def answer(self, row: int) -> Ints:
        """int64 [n], the tokens that a row has chosen so far."""
        return np.array(self.ids[row][len(self.ids[row]) - int(self.counts[row]) :], np.int64)

    def _admit(self, most: int) -> Iterator[Chosen]:
        """Read waiting prompts, choose their first tokens, and let them join."""
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        rows = np.array([p * self._copies + c for p in taken for c in range(self._copies)], np.int64)
        self.started[rows] = time.perf_counter()
        ids, real = pad_left([self.ids[p * self._copies] for p in taken], self.pad_id)
        group = self._new_group(rows, ids)
        logits, stream, positions = self._forward(group, ids, real, last=True)
        if self._copies > 1:
            copied = np.repeat(np.arange(len(taken)), self._copies)
            columns = np.broadcast_to(np.arange(ids.shape[1]), (len(rows), ids.shape[1]))
            group.cache = StaticCache.packed([(group.cache, copied, columns)], group.cache.capacity)
            group.mask, ids, positions, logits = group.mask[copied], ids[copied], positions[copied], logits[copied]
            stream = stream if stream is None else paddle.index_select(stream, paddle.to_tensor(copied))
        yield from self._decide(group, logits)
        self._guess(group, ids, positions, np.full(len(rows), ids.shape[1] - 1), stream)
        self._group = group if self._group is None else self._packed([self._group, group])

    def _new_group(self, rows: Ints, ids: Ints) -> _Group:
        """Rows before their prompts [P, S] are read; where they stay alone, their cache has room for the answers."""
        layers, history = int(self.model.architecture["num_hidden_layers"]) + self._guesser.layers, None
        room = int(self._limits[rows].max()) + SLACK if self._group is None else 0
        if self.sampling.penalised:
            history = History([self.ids[row] for row in rows], int(self.model.architecture["vocab_size"]))
        cache = StaticCache(layers, ids.shape[1] + room, codec_of(self.model))
        mask = np.zeros((len(ids), 0), np.int64)
        return _Group(rows, mask, cache, history, [[] for _ in rows])

    def _advance(self, group: _Group, busy: int) -> Iterator[Chosen]:
        """One pass of the model over the last tokens and the guesses."""
        w = max(len(group.next_ids[i]) for i in np.flatnonzero(self.live[group.rows]))
        if 2 * busy <= len(group.rows) or group.cache.length + w > group.cache.capacity:
            # copying the cache pays for itself when half of the rows have ended
            group = self._group = self._packed([group])
        ids, real = np.full((len(group.rows), w), self.pad_id, np.int64), np.zeros((len(group.rows), w), np.int64)
        for i in np.flatnonzero(self.live[group.rows]):
            tokens = group.next_ids[i]
            ids[i, : len(tokens)], real[i, : len(tokens)] = tokens, 1
        logits, stream, positions = self._forward(group, ids, real, last=False)
        kept = yield from self._decide(group, logits)
        group.mask[:, -w:] *= np.arange(w) < kept[:, None]
        self._guess(group, ids, positions, np.maximum(kept - 1, 0), stream)
        surplus = w - int(kept.max())
        if surplus:
            group.cache.truncate(group.cache.length - surplus)
            group.mask = group.mask[:, :-surplus]

    def _forward(self, group: _Group, ids: Ints, real: Ints, *, last: bool) -> tuple[NDArray[np.float32], Any, Ints]:
        """Logits of new columns [b, w], or of the last one; ``Features.stream`` if the guesser has layers; positions."""
        positions = group.mask.sum(1, keepdims=True) + np.cumsum(real, axis=1) - 1
        positions = np.maximum(positions, 0)
        group.mask = np.concatenate([group.mask, real], axis=1)
        mask = None if group.mask.all() else group.mask
        wanted = self._guesser.layers > 0
        logits, stream = self._passes.every(ids, positions, mask, group.cache, last=last, stream=wanted)
        return logits, stream, positions

    def _decide(self, group: _Group, logits: NDArray[np.float32]) -> Generator[Chosen, None, Ints]:
        """Choose tokens from logits [b, w, V] for as long as the guesses agree; returns how many each row chose.

        A guess that equals what the row draws anyway is accepted: with probability p(guess), and otherwise the row has
        drawn from p without the guess. For a guess that is certain this is the rule of Leviathan et al. (2023,
        arXiv:2211.17192, section 2.3) with q = 1 at the guess; the tokens are those without guesses, draw for draw.
        """
        guesses = [tokens[1:] for tokens in group.next_ids]
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
            agreed = [step < len(guesses[i]) and guesses[i][step] == t for i, t in zip(active, chosen, strict=True)]
            self.right[rows] += agreed
            yield Chosen(rows, chosen, scores)
            active = active[np.array(agreed) & self.live[rows]]
        return kept

    def _guess(self, group: _Group, ids: Ints, positions: Ints, last: Ints, stream: Any) -> None:
        """Let the guesser add to ``next_ids`` what still fits into the rows."""
        rows = group.rows
        if not self.live[rows].any():
            return
        room = np.where(self.live[rows], self._limits[rows] - self.counts[rows] - 1, 0)
        texts, draw = [self.ids[row] for row in rows], Draw(self.sampling, self.counts[rows], self._streams[rows])
        seen = Seen(texts, ids, positions, last, stream, mask_of(group.mask), group.cache)
        for i, tokens in enumerate(self._guesser.guess(seen, draw)):
            fitting = tokens[: int(room[i])]
            group.next_ids[i] += fitting
            self.guessed[rows[i]] += len(fitting)

    def _packed(self, groups: Sequence[_Group]) -> _Group:
        """The rows of these groups that have not ended, in a cache without holes."""
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
    """The key mask [b, K] for the model, nothing where every column is real."""
    return None if real.all() else paddle.to_tensor(real)
