"""What the engine does in its thread: which request is prefilled next, in which chunks, and which rows are decoded together.

A completion does not depend on what else is decoded. Where a kernel computes whole passes (``Passes.in_one_call``), a
token's numbers depend neither on the other rows nor on how its prompt was divided, so rows share one cache and one pass.
Elsewhere they depend on the shapes of matrix products; then, if ``invariant``, every row has passes of its own, and prompts
are divided at multiples of the chunk, also behind a cached beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from erniecore_generation.engine.logprobs import token_logprob
from erniecore_generation.engine.prefix import PrefixCache
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
from erniecore_generation.stepper import Group, Row, Sampled, Stepper


@dataclass(eq=False, slots=True)
class Job:
    """A request on its way. Times are those of ``time.perf_counter``; 0: not yet."""

    number: int
    request: GenerationRequest
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


class Scheduler:
    """All requests that have a row. Used by one thread, in which the model is in evaluation mode.

    Args:
        chunk: tokens of a prompt that are computed in one pass.
        invariant: completions must not depend on what else is decoded.
    """

    def __init__(self, stepper: Stepper, prefix: PrefixCache, *, chunk: int, invariant: bool) -> None:
        self.stepper, self.prefix, self.chunk = stepper, prefix, chunk
        self.shared = stepper.passes.in_one_call or not invariant
        self.counts = Counts()
        self.jobs: dict[int, Job] = {}
        self._prefills: list[Job] = []
        self._groups: list[Group] = []

    def admit(self, job: Job) -> None:
        """Give a request a row."""
        request = job.request
        job.row = Row(
            list(request.ids), request.sampling, request.max_new_tokens, request.stop_ids, request.stream, job.number,
            least=request.min_new_tokens, constraint=request.constraint,
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
        for place, group in enumerate(self._groups):
            self._groups[place] = self._advance(group)
        self._groups = [group for group in self._groups if group.live]

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
        row, request = job.row, job.request
        assert row is not None
        if job.group is None:
            job.group = self._begin(job, row)
        group, size = job.group, len(request.ids)
        start = group.cache.length
        end = min(size, (start // self.chunk + 1) * self.chunk)
        ids = np.array([request.ids[start:end]], np.int64)
        scored = request.prompt_logprobs is not None
        logits, residual, positions = self.stepper.forward(group, ids, np.ones_like(ids), last=not scored)
        try:
            if scored:
                self._score(job, logits[0], start)
        except Exception as error:
            self.fail(job, error)
            return
        if end < size:
            self._draft_prompt(row, group, (ids, positions, residual), end)
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
        self._deliver(self.stepper.decide(group, logits[:, -1:]), group)
        if row.live:
            self.stepper.draft(group, ids, positions, np.array([ids.shape[1] - 1]), residual)
            self._join(group)
        self._keep(job, group, start, end)

    def _begin(self, job: Job, row: Row) -> Group:
        """The row before its prompt, but for what the prefix cache has of it."""
        ids, request = row.ids, job.request
        group = self.stepper.group([row], len(ids) + self.stepper.room([row]))
        if request.prompt_logprobs is None:
            # of the last token the logits are needed, not only keys and values
            most = len(ids) - 1
            found = self.prefix.find(
                ids, request.adapter or "", most if self.shared else most // self.chunk * self.chunk
            )
            if not self.shared:
                found = found[: len(found) * self.prefix.size // self.chunk * self.chunk // self.prefix.size]
            if found:
                job.cached = len(found) * self.prefix.size
                group.cache.fill(found)
                group.mask = np.ones((1, job.cached), np.int64)
        self.counts.prompt_tokens += len(ids)
        self.counts.cached_tokens += job.cached
        return group

    def _keep(self, job: Job, group: Group, start: int, end: int) -> None:
        """Store a chunk in the prefix cache; where numbers depend on shapes, only if it is a whole one.

        A drafter's own layers saw the token behind each column, which behind the last one may be another in the prompt that
        takes the block: that can cost a draft token, and changes no completion.
        """
        drafted = group.cache.length == end
        if drafted and (self.shared or end - start == self.chunk):
            self.prefix.add(job.request.ids, job.request.adapter or "", group.cache, start, end)

    def _score(self, job: Job, logits: Any, start: int) -> None:
        """Log-probabilities of the tokens behind the columns ``start`` and following, whose logits [w, V] are there."""
        ids, most = job.request.ids, job.request.prompt_logprobs or 0
        for column, scores in enumerate(logits[: len(ids) - start - 1]):
            job.scores.append(token_logprob(scores, ids[start + column + 1], most))

    def _draft_prompt(self, row: Row, group: Group, passed: tuple[Any, Any, Any], end: int) -> None:
        """Give a drafter with layers of its own the chunk of a prompt, for its part of the cache."""
        if not self.stepper.drafter.layers:
            return
        (ids, positions, residual), whole = passed, row.ids
        row.ids = whole[: end + 1]
        self.stepper.draft(group, ids, positions, np.array([ids.shape[1] - 1]), residual)
        row.ids, row.next_ids, row.draft_tokens = whole, [], 0

    def _join(self, group: Group) -> None:
        """Decode a row from now on, with the others if passes may be shared."""
        mine = next((i for i, other in enumerate(self._groups) if other.live), None)
        if self.shared and mine is not None:
            self._groups[mine] = self.stepper.packed([self._groups[mine], group])
        else:
            self._groups.append(group)

    def _advance(self, group: Group) -> Group:
        """One pass over a group, in a compacted cache where that is needed or pays off."""
        live = group.live
        if not live:
            return group
        full = group.cache.length + self.stepper.width(group) > group.cache.capacity
        if 2 * len(live) <= len(group.rows) or full:
            group = self.stepper.packed([group])
        self._deliver(self.stepper.advance(group), group)
        return group

    def _deliver(self, steps: Iterable[Sampled], group: Group) -> None:
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
                self.end(job, "stop" if row.stopped else "length")
