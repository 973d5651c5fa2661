"""What the engine does in its thread: which request is prefilled next, in which chunks, and which rows are decoded together.

A completion does not depend on what else is decoded. Where a kernel computes whole passes (``Passes.in_one_call``), a
token's numbers depend neither on the other rows nor on how its prompt was divided, so rows with the same adapter share one
cache and one pass. Elsewhere they depend on the shapes of matrix products; then, if they must not, every row has passes of
its own, and prompts are divided at multiples of the chunk, also behind a cached beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from erniecore_generation.engine.logprobs import token_logprob
from erniecore_generation.engine.prefix import Block, PrefixCache, media_blocks, text_blocks
from erniecore_generation.engine.requests import (
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Listener,
    PromptScored,
    Reason,
    TokenLogprob,
    Tokens,
)
from erniecore_generation.passes import Wanted
from erniecore_generation.stepper import Group, Row, Sampled, Stepper


@dataclass(eq=False, slots=True)
class Job:
    """A request on its way. Times are those of ``time.perf_counter``; 0: not yet."""

    number: int
    request: GenerationRequest
    adapter: str
    listener: Listener
    submitted: float
    started: float = 0.0
    first: float = 0.0
    cached: int = 0
    cancelled: bool = False
    ended: bool = False
    row: Row | None = None
    group: Group | None = None
    scores: list[TokenLogprob | None] = field(default_factory=lambda: [None])
    blocks: Sequence[Block] = ()

    @property
    def order(self) -> tuple[int, int]:
        """Smaller ones come first."""
        return self.request.priority, self.number


@dataclass(slots=True)
class Counts:
    """Totals over all requests; see ``EngineStats``."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0


@dataclass(slots=True)
class Lane:
    """Rows with the same adapter.

    Attributes:
        adapter: its name; empty: the base alone. stepper: of the model with it.
        shared: whether rows share passes. invariant: whether completions depend on nothing else nevertheless.
    """

    adapter: str
    stepper: Stepper
    shared: bool
    invariant: bool
    groups: list[Group] = field(default_factory=list)


class Scheduler:
    """All requests that have a row. Used by one thread, in which the model is in evaluation mode.

    Args:
        lanes: one per adapter; the model uses that of the last one.
        chunk: tokens of a prompt that are computed in one pass.
        select: makes the model use an adapter. context: tokens that are read of a prompt at most; None: no limit.
    """

    def __init__(
        self, lanes: Sequence[Lane], prefix: PrefixCache, *, chunk: int, select: Callable[[str], None],
        context: int | None = None,
    ) -> None:  # fmt: skip
        self.lanes, self.prefix, self.chunk = {lane.adapter: lane for lane in lanes}, prefix, chunk
        self.counts, self._context = Counts(), context
        self.jobs: dict[int, Job] = {}
        self._select, self._selected = select, lanes[-1].adapter
        self._prefills: list[Job] = []

    def admit(self, job: Job) -> None:
        """Give a request a row."""
        request = job.request
        job.row = Row(
            list(request.ids), request.sampling, request.max_new_tokens, request.stop_ids, request.stream, job.number,
            least=request.min_new_tokens, constraint=request.constraint, media=request.media,
        )  # fmt: skip
        job.started = time.perf_counter()
        self.jobs[job.number] = job
        self._prefills.append(job)
        self._prefills.sort(key=lambda waiting: waiting.order)

    def step(self) -> None:
        """One chunk of the first prompt that is not computed yet, and one pass over all rows."""
        self.counts.steps += 1
        if self._prefills:
            self._prefill(self._prefills[0])
        for lane in self.lanes.values():
            lane.groups = [self._advance(lane, group) for group in lane.groups]
            lane.groups = [group for group in lane.groups if group.live]

    def end(self, job: Job, reason: Reason) -> None:
        """Free the row of a request, and tell its listener."""
        now = time.perf_counter()
        row, first = job.row, job.first or now
        if reason == "abort":
            self.counts.aborted += 1
        else:
            self.counts.finished += 1
        self._free(job)
        self.tell(
            job,
            Finished(
                reason, len(job.request.ids), job.cached, 0 if row is None else row.count,
                queue_s=(job.started or now) - job.submitted,
                prefill_s=first - (job.started or now),
                decode_s=now - first,
                draft_tokens=0 if row is None else row.draft_tokens,
                accepted_tokens=0 if row is None else row.accepted_tokens,
            ),
        )  # fmt: skip

    def fail(self, job: Job, error: BaseException) -> None:
        """The same, for a request that failed."""
        self.counts.failed += 1
        self._free(job)
        self.tell(job, Failed(error))

    def tell(self, job: Job, event: Event) -> None:
        """Call a listener; one that raises ends its own request."""
        try:
            job.listener(event)
        except Exception:
            job.cancelled = True

    def _free(self, job: Job) -> None:
        job.ended = True
        self.jobs.pop(job.number, None)
        if job in self._prefills:
            self._prefills.remove(job)
        job.group = None
        if job.row is not None:
            job.row.live = False
            self.counts.draft_tokens += job.row.draft_tokens
            self.counts.accepted_tokens += job.row.accepted_tokens

    def _prefill(self, job: Job) -> None:
        """The next chunk of a prompt; after the last one the first token, and the row joins the others."""
        row, request, lane = job.row, job.request, self.lanes[job.adapter]
        assert row is not None
        self._use(lane)
        if job.group is None:
            job.group = self._begin(job, row, lane)
        group, size = job.group, min(len(request.ids), self._context or len(request.ids))
        start = group.cache.length
        end = min(size, (start // self.chunk + 1) * self.chunk)
        end = end if request.media is None else request.media.boundary(start, end)
        ids = np.array([request.ids[start:end]], np.int64)
        scored = request.prompt_logprobs is not None
        wanted: Wanted = "all" if scored else "last" if end == size else "none"
        logits, residual, positions = lane.stepper.forward(group, ids, np.ones_like(ids), logits=wanted)
        try:
            if scored:
                self._score(job, logits[0], start)
        except Exception as error:
            self.fail(job, error)
            return
        if end < size:
            self._draft_prompt(row, group, lane, (ids, positions, residual), end)
            self._keep(job, group, start, end)
            return
        self._prefills.remove(job)
        if scored:
            self.tell(job, PromptScored(tuple(job.scores)))
        if not request.max_new_tokens:
            job.first = time.perf_counter()
            self._keep(job, group, start, end)
            self.end(job, "length")
            return
        self._deliver(lane, lane.stepper.decide(group, logits[:, -1:]), group)
        if row.live:
            lane.stepper.draft(group, ids, positions, np.array([ids.shape[1] - 1]), residual)
            self._join(lane, group)
        self._keep(job, group, start, end)

    def _begin(self, job: Job, row: Row, lane: Lane) -> Group:
        """The row before its prompt, but for what the prefix cache has of it."""
        ids, request = row.ids, job.request
        group = lane.stepper.group([row], len(ids) + lane.stepper.room([row]))
        # a token's log-probability needs the pass over the one before it
        known = len(ids) if request.prompt_logprobs is None else request.scored_from
        if self.prefix.most_bytes:
            media = request.media
            job.blocks = tuple(
                text_blocks(ids, job.adapter, self.prefix.size)
                if media is None
                else media_blocks(ids, job.adapter, media, self.chunk)
            )
            # prompts with images are stored as they are computed; texts, where numbers depend on shapes, by whole chunks
            unit = self.chunk if media is None and not lane.shared else 1
            found, job.cached = self.prefix.find(job.blocks, known, unit)
            if found:
                group.cache.fill(found)
                group.mask = np.ones((1, job.cached), np.int64)
                job.scores += [None] * job.cached
        self.counts.prompt_tokens += len(ids)
        self.counts.cached_tokens += job.cached
        return group

    def _keep(self, job: Job, group: Group, start: int, end: int) -> None:
        """Store a chunk in the prefix cache; where numbers depend on shapes, only if it is a whole one.

        A drafter's own layers saw the token behind each column, which behind the last one may be another in the prompt that
        takes the block: that can cost a draft token, and changes no completion.
        """
        drafted = group.cache.length == end
        same = self.lanes[job.adapter].shared or job.request.media is not None or end - start == self.chunk
        if drafted and same:
            self.prefix.add(job.blocks, group.cache, 0, np.arange(end), start)

    def _keep_text(self, job: Job, lane: Lane, group: Group) -> None:
        """Store prompt and completion, with which the next prompt of a conversation begins; not where the numbers of a decoding
        step are others than those of a prompt's pass."""
        row = job.row
        assert row is not None
        place = group.rows.index(row)
        columns = np.flatnonzero(group.mask[place])
        if job.request.media is None and lane.shared and lane.invariant and columns[-1] < group.cache.length:
            self.prefix.add(text_blocks(row.ids, job.adapter, self.prefix.size), group.cache, place, columns)

    def _score(self, job: Job, logits: Any, start: int) -> None:
        """Log-probabilities of the tokens behind the columns ``start`` and following, whose logits [w, V] are there."""
        ids, most = job.request.ids, job.request.prompt_logprobs or 0
        for place, scores in enumerate(logits[: len(ids) - start - 1], start + 1):
            wanted = place >= job.request.scored_from
            job.scores.append(token_logprob(scores, ids[place], most) if wanted else None)

    def _draft_prompt(self, row: Row, group: Group, lane: Lane, passed: tuple[Any, Any, Any], end: int) -> None:
        """Give a drafter with layers of its own the chunk of a prompt, for its part of the cache."""
        if not lane.stepper.drafter.layers:
            return
        (ids, positions, residual), whole = passed, row.ids
        row.ids = whole[: end + 1]
        lane.stepper.draft(group, ids, positions, np.array([ids.shape[1] - 1]), residual)
        row.ids, row.next_ids, row.draft_tokens = whole, [], 0

    def _join(self, lane: Lane, group: Group) -> None:
        """Decode a row from now on, with the others if passes are shared."""
        lane.groups = [other for other in lane.groups if other.live]
        if lane.shared and lane.groups:
            lane.groups = [lane.stepper.joined(lane.groups[0], group)]
        else:
            lane.groups.append(group)

    def _use(self, lane: Lane) -> None:
        """Make the model use the adapter of a lane."""
        if lane.adapter != self._selected:
            self._select(lane.adapter)
            self._selected = lane.adapter

    def _advance(self, lane: Lane, group: Group) -> Group:
        """One pass over a group, in a compacted cache where that is needed or pays off."""
        live = group.live
        if not live:
            return group
        self._use(lane)
        full = group.cache.length + lane.stepper.width(group) > group.cache.capacity
        if 2 * len(live) <= len(group.rows) or full:
            group = lane.stepper.packed([group])
        self._deliver(lane, lane.stepper.advance(group), group)
        return group

    def _deliver(self, lane: Lane, steps: Iterable[Sampled], group: Group) -> None:
        """Run a step to its end, then tell every listener what its row has got."""
        rows = [group.rows[i] for i in group.live]
        tokens: dict[int, list[int]] = {}
        logprobs: dict[int, list[TokenLogprob]] = {}
        for sampled in steps:
            for row, token, scores in zip(sampled.rows, sampled.tokens.tolist(), sampled.logits, strict=True):
                tokens.setdefault(row.index, []).append(token)
                wanted = self.jobs[row.index].request.logprobs
                if wanted is not None:
                    logprobs.setdefault(row.index, []).append(token_logprob(scores, token, wanted))
        for row in rows:
            job, new = self.jobs[row.index], tokens.get(row.index, [])
            if new:
                job.first = job.first or time.perf_counter()
                self.counts.new_tokens += len(new)
                asked = job.request.logprobs is not None
                self.tell(job, Tokens(tuple(new), tuple(logprobs[row.index]) if asked else None))
            if row.error is not None:
                self.fail(job, row.error)
            elif not row.live:
                self._keep_text(job, lane, group)
                self.end(job, "stop" if row.stopped else "length")
