"""Continuous batching: sequences decode together, and a waiting prompt takes the slot of a sequence that has ended.

A sequence does not depend on the others in its batch beyond rounding: it attends to its own columns of the cache and
samples from its own random stream, counted by its own tokens. Speculative decoding (``speculate.py``) changes nothing but
the time: the model verifies draft tokens in one pass, and a draft token is accepted where it is the token that would have
been sampled anyway. One step is ``stepper.py``, which the serving engine shares. Token ids only: text is ``respond.py``.

Letters: R sequences (rows) in all, b rows decoded now, w new columns, K columns of the cache, H hidden, V vocabulary.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from numpy.typing import NDArray

from erniecore.api import ops
from erniecore_generation.cache import StaticCache
from erniecore_generation.generate import pad_left
from erniecore_generation.media import PromptMedia
from erniecore_generation.prompts import check_prompt
from erniecore_generation.sampling import Ints, Sampling
from erniecore_generation.speculate import Drafter
from erniecore_generation.stepper import Group, Row, Sampled, Stepper


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tokens that some rows sampled in one step.

    Attributes:
        rows, tokens: int64 [b]. logits: float32 [b, V] that the tokens were sampled from.
    """

    rows: Ints
    tokens: Ints
    logits: NDArray[np.float32]


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
        media: what images add to each prompt; empty: no prompt has any.

    Attributes:
        rows: the R rows. started: ``time.perf_counter`` at the start of each row's prefill.

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
        media: Sequence[PromptMedia | None] = (),
    ) -> None:
        limits = np.broadcast_to(np.asarray(max_new_tokens, np.int64), len(prompts))
        for ids, limit in zip(prompts, limits.tolist(), strict=True):
            row = np.asarray([ids], np.int64)
            check_prompt(row, np.ones_like(row), model.architecture, limit)
        R, stops = len(prompts) * copies, frozenset(stop_ids)
        numbers = range(R) if streams is None else [int(stream) for stream in streams]
        self.rows = []
        for i in range(R):
            prompt, seen = i // copies, media[i // copies] if media else None
            made = Row(list(prompts[prompt]), sampling, int(limits[prompt]), stops, numbers[i], i, media=seen)
            self.rows.append(made)
        self.started = np.zeros(R)
        self._copies, self._slots = copies, max(copies, slots or R)
        self._waiting = deque(range(len(prompts)))
        self._group: Group | None = None
        self._stepper = Stepper(model, drafter=drafter, pad_id=pad_id)

    @property
    def ids(self) -> list[list[int]]:
        """Per row prompt and completion so far."""
        return [row.ids for row in self.rows]

    @property
    def live(self) -> NDArray[np.bool_]:
        """Bool [R], rows that have not ended."""
        return np.array([row.live for row in self.rows], bool)

    @property
    def stopped(self) -> NDArray[np.bool_]:
        """Bool [R], rows that ended with a stop token."""
        return np.array([row.stopped for row in self.rows], bool)

    @property
    def counts(self) -> Ints:
        """int64 [R], tokens of the completion."""
        return np.array([row.count for row in self.rows], np.int64)

    @property
    def draft_tokens(self) -> Ints:
        """int64 [R], tokens proposed by the drafter."""
        return np.array([row.draft_tokens for row in self.rows], np.int64)

    @property
    def accepted_tokens(self) -> Ints:
        """int64 [R], draft tokens that were accepted."""
        return np.array([row.accepted_tokens for row in self.rows], np.int64)

    def run(self) -> Iterator[Chosen]:
        """Decode all prompts. Between two results the caller may :meth:`finish` rows.

        Raises ``NumericsError`` for logits that are not finite."""
        while True:
            busy = 0 if self._group is None else len(self._group.live)
            free = self._slots - busy
            # prompts are prefilled together, once a quarter of the slots is free
            if not busy:
                self._group = None
            if self._waiting and free >= self._copies and (not busy or 4 * free >= self._slots):
                steps = self._admit(free // self._copies)
            elif self._group is not None and busy:
                steps = self._advance(self._group, busy)
            else:
                return
            for sampled in steps:
                yield Chosen(np.array([row.index for row in sampled.rows]), sampled.tokens, sampled.logits)

    def finish(self, row: int) -> None:
        """End a row for a reason of the caller's (a stop string)."""
        self.rows[row].live = False

    def completion_ids(self, row: int) -> Ints:
        """int64 [n], the completion of a row so far."""
        found = self.rows[row]
        return np.array(found.ids[len(found.ids) - found.count :], np.int64)

    def _admit(self, most: int) -> Iterator[Sampled]:
        """Prefill waiting prompts, sample their first tokens, and add them to the batch."""
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        rows = [self.rows[p * self._copies + c] for p in taken for c in range(self._copies)]
        self.started[[row.index for row in rows]] = time.perf_counter()
        ids, real = pad_left([self.rows[p * self._copies].ids for p in taken], self._stepper.pad_id)
        # room for the completions if there is no other group to merge with
        room = self._stepper.room(rows) if self._group is None else 0
        group = self._stepper.group(rows, ids.shape[1] + room, batch=len(taken))
        logits, residual, positions = self._stepper.forward(group, ids, real, logits="last")
        if self._copies > 1:
            copied = np.repeat(np.arange(len(taken)), self._copies)
            columns = np.broadcast_to(np.arange(ids.shape[1]), (len(rows), ids.shape[1]))
            group.cache = StaticCache.packed([(group.cache, copied, columns)], group.cache.capacity)
            group.mask, ids, positions, logits = group.mask[copied], ids[copied], positions[copied], logits[copied]
            residual = residual if residual is None else paddle.index_select(residual, ops.tensor_of(copied))
        yield from self._stepper.decide(group, logits)
        self._stepper.draft(group, ids, positions, np.full(len(rows), ids.shape[1] - 1), residual)
        self._group = group if self._group is None else self._stepper.packed([self._group, group])

    def _advance(self, group: Group, busy: int) -> Iterator[Sampled]:
        """One step of every row, in a compacted cache where that pays off: when half of the rows have ended."""
        full = group.cache.length + self._stepper.width(group) > group.cache.capacity
        if 2 * busy <= len(group.rows) or full:
            group = self._group = self._stepper.packed([group])
        yield from self._stepper.advance(group)
