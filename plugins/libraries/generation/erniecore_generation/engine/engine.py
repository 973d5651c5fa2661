"""The engine: one thread that owns the model, a queue before it, and what other threads may call. What a turn of it does is
``scheduler.py``; the package's docstring tells how it is used.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from erniecore.api import UsageError
from erniecore.api.adapter import AdapterChoice
from erniecore.api.command import did_you_mean
from erniecore_generation.engine.prefix import BLOCK, PrefixCache
from erniecore_generation.engine.requests import (
    EngineStats,
    EngineStopped,
    GenerationRequest,
    Listener,
    QueueFull,
    State,
    Ticket,
)
from erniecore_generation.engine.scheduler import Counts, Job, Lane, Scheduler
from erniecore_generation.generate import evaluating
from erniecore_generation.prompts import check_request
from erniecore_generation.speculate import make_drafter
from erniecore_generation.stepper import Stepper

if TYPE_CHECKING:
    from erniecore.api.model import ModelBundle, Tokenizer

#: Columns by which the cache of rows that are decoded grows at a time.
GROWTH = 256
#: models whose active adapter an engine changes now; a second engine would compute with the first one's
_SWITCHED: WeakSet[Any] = WeakSet()
_SWITCHES = threading.Lock()


class Engine:
    """Decodes requests that come and go.

    Args:
        bundle: the model; its prediction layers must be there for ``speculative="mtp"``.
        tokenizer: for its padding id.
        rows: the most that are decoded together, prompts that are being computed included.
        context: tokens that prompt and completion of a request may have together; None: ``max_position_embeddings``.
        chunk: tokens of a prompt that are computed in one pass; rows that are decoded wait for one such pass at most.
        waiting: requests that may wait for a row.
        prefix_bytes: memory of the prefix cache; 0: off. block: its unit, in tokens.
        speculative: drafter, ``off``, ``lookup`` or ``mtp``; it changes no completion.
        invariant: a completion has the same tokens and log-probabilities, bit by bit, whatever else is decoded. None: where
            a kernel computes whole passes, for then it costs nothing; ``EngineStats.invariant`` tells. True: also where a
            row needs passes of its own for it, which takes two to three times as long for 8 rows.
        adapter: that of requests that name none; None: the base alone. Adapters are those on the model (``AdapterChoice``);
            the engine switches between them while it runs, and leaves this one active when it has stopped.

    Raises:
        UsageError: an argument out of range, or a drafter that the model lacks.
    """

    #: what a turn does
    scheduler: ClassVar[type[Scheduler]] = Scheduler

    def __init__(
        self,
        bundle: ModelBundle,
        tokenizer: Tokenizer,
        *,
        rows: int = 8,
        context: int | None = None,
        chunk: int = 64,
        waiting: int = 256,
        prefix_bytes: int = 256 << 20,
        block: int = BLOCK,
        speculative: str = "off",
        invariant: bool | None = None,
        adapter: str | None = None,
    ) -> None:
        self.model: Any = bundle.model
        limit = self.model.architecture.get("max_position_embeddings")
        self.context = min([int(n) for n in (context, limit) if n is not None], default=None)
        self._rows, self._chunk, self._most_waiting, self._invariant = rows, chunk, waiting, invariant
        for name, value, least in (
            ("rows", rows, 1),
            ("chunk", chunk, 1),
            ("waiting", waiting, 0),
            ("block", block, 1),
        ):
            if value < least:
                raise UsageError("an engine cannot run so", where=name, found=str(value), expected=f">= {least}")
        if chunk % block:
            raise UsageError("chunks are whole blocks", where="chunk", found=f"{chunk}, block {block}")
        self._pad_id = tokenizer.pad_id
        self._prefix = PrefixCache(block, prefix_bytes)
        self._drafter = make_drafter(self.model, speculative)
        self._speculative = speculative
        self._adapters = self.model.adapter_names() if isinstance(self.model, AdapterChoice) else []
        self._adapter = self._named(adapter or "")
        self._changed = threading.Condition()
        self._waiting: list[tuple[tuple[int, int], Job]] = []
        self._jobs: dict[int, Job] = {}
        self._numbers = 0
        self._state: State = "new"
        self._error: BaseException | None = None
        self._scheduler: Scheduler | None = None
        self._thread = threading.Thread(target=self._main, name="erniecore-engine", daemon=True)

    def start(self) -> None:
        """Start the thread; returns when it takes requests.

        Raises:
            UsageError: what was asked for is not possible with this model, or another engine runs on a model with adapters.
                Whatever else went wrong in the thread.
        """
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._state != "new")
            if self._error is not None:
                raise self._error

    def submit(self, request: GenerationRequest, listener: Listener) -> Ticket:
        """Queue a request; from any thread.

        Raises:
            UsageError: a prompt that is empty or too long, an id outside the vocabulary, no such adapter.
            QueueFull: as many wait as may. EngineStopped: the engine takes no requests.
        """
        check_request(request, int(self.model.architecture["vocab_size"]), self.context)
        adapter = self._adapter if request.adapter is None else self._named(request.adapter)
        with self._changed:
            if self._state != "running":
                raise EngineStopped("the engine takes no requests", found=self._state) from self._error
            # a listener that has heard of an end may submit the next request before the engine's next turn
            if len(self._jobs) - self._rows >= self._most_waiting:
                excess = sum(not job.ended for job in self._jobs.values()) - self._rows
                if excess >= self._most_waiting:
                    raise QueueFull("too many requests wait", found=str(excess), fix="try again in a moment")
            job = Job(self._numbers, request, adapter, listener, time.perf_counter())
            self._numbers += 1
            self._jobs[job.number] = job
            heapq.heappush(self._waiting, (job.order, job))
            self._changed.notify_all()
        return Ticket(job.number, request)

    def cancel(self, ticket: Ticket) -> None:
        """End a request: its row is free before the next pass. One that has ended already stays as it is."""
        with self._changed:
            job = self._jobs.get(ticket.number)
            if job is not None:
                job.cancelled = True
            self._changed.notify_all()

    def stop(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests, and end. A listener may call it: then it returns at once, and the engine ends later.

        Args:
            drain: finish those that are there, for at most ``timeout`` seconds; those left are aborted.
        """
        inside = self._thread is threading.current_thread()
        with self._changed:
            if self._state in ("new", "running"):
                self._state = "stopped" if self._state == "new" else "draining"
            if drain and not inside:
                self._changed.wait_for(lambda: not self._jobs or self._state in ("stopped", "failed"), timeout)
            for job in () if drain and inside else self._jobs.values():
                job.cancelled = True
            self._changed.notify_all()
        if self._thread.ident is not None and not inside:
            self._thread.join()

    def stats(self) -> EngineStats:
        """The engine at this moment; from any thread."""
        with self._changed:
            scheduler, prefix = self._scheduler, self._prefix
            jobs, waiting = sum(not job.ended for job in self._jobs.values()), len(self._waiting)
            queued = {job.number: job.adapter for _, job in self._waiting}
            placed = {job.adapter for job in self._jobs.values() if not job.ended and job.number not in queued}
            return EngineStats(
                state=self._state,
                error="" if self._error is None else f"{type(self._error).__name__}: {self._error}",
                invariant=scheduler is not None and all(lane.invariant for lane in scheduler.lanes.values()),
                rows=self._rows,
                running=jobs - waiting,
                waiting=waiting,
                prefix_blocks=len(prefix),
                prefix_bytes=prefix.num_bytes,
                prefix_queries=prefix.queries,
                prefix_hits=prefix.hits,
                running_adapters=tuple(sorted(placed - {""})),
                waiting_adapters=tuple(sorted({*queued.values()} - {""})),
                **asdict(Counts() if scheduler is None else scheduler.counts),
            )

    def _main(self) -> None:
        scheduler = None
        try:
            with self._switching(), evaluating(self.model):
                scheduler = self._prepare()
                with self._changed:
                    self._scheduler = scheduler
                    if self._state == "new":  # else it was stopped meanwhile
                        self._state = "running"
                    self._changed.notify_all()
                while self._turn(scheduler):
                    pass
                self._select(self._adapter)
            with self._changed:
                self._state = "stopped"
                self._changed.notify_all()
        except BaseException as error:
            self._fail(scheduler, error)

    @contextmanager
    def _switching(self) -> Iterator[None]:
        """This engine alone changes the model's active adapter."""
        if not self._adapters:
            yield
            return
        with _SWITCHES:
            if self.model in _SWITCHED:
                fix = "stop that engine, or open the model again for this one"
                raise UsageError("another engine runs on this model and its adapters", where="bundle", fix=fix)
            _SWITCHED.add(self.model)
        try:
            yield
        finally:
            with _SWITCHES:
                _SWITCHED.discard(self.model)

    def _named(self, adapter: str) -> str:
        """The name, if the model has such an adapter; empty: the base alone."""
        if adapter and adapter not in self._adapters:
            raise UsageError(
                "no such adapter",
                where="adapter",
                found=adapter,
                expected=", ".join(self._adapters) or "none: the model has no adapters",
                fix=did_you_mean(adapter, self._adapters),
            )
        return adapter

    def _prepare(self) -> Scheduler:
        """The scheduler, which reads the model's weights as they are now."""
        lanes = [self._lane(name) for name in (*self._adapters, "")]
        how: Any = {"chunk": self._chunk, "select": self._select, "context": self.context}
        return self.scheduler(lanes, self._prefix, **how)

    def _select(self, adapter: str) -> None:
        if self._adapters:
            self.model.set_adapter(adapter or None)

    def _lane(self, adapter: str) -> Lane:
        self._select(adapter)
        stepper = Stepper(self.model, drafter=self._drafter, pad_id=self._pad_id, isolate=True, growth=GROWTH)
        whole, must = stepper.passes.in_one_call, self._invariant
        if whole and must is not False:
            widest = {"off": 1, "mtp": 2}.get(self._speculative, 5)
            for name, rows, columns in (("chunk", 1, self._chunk), ("rows", self._rows, widest)):
                if not stepper.passes.takes(rows, columns):
                    found = f"{rows} x {columns} tokens"
                    raise UsageError("too much for one pass of the kernel", where=name, found=found, fix="ask for less")
        elif must and self._speculative != "off":
            raise UsageError(
                "draft tokens would change the last bits of logits: no kernel computes passes of this model",
                where="speculative",
                found=self._speculative,
                fix="leave speculation off, or give up invariance (invariant=False)",
            )
        return Lane(adapter, stepper, shared=whole or not must, invariant=bool(must) or (whole and must is not False))

    def _turn(self, scheduler: Scheduler) -> bool:
        """Take what has come, then one step. False: there is nothing left to do and the engine is to end."""
        with self._changed:
            for number in [number for number, job in self._jobs.items() if job.ended]:
                del self._jobs[number]
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._jobs) or self._state != "running")
            if not self._jobs:
                return False
            cancelled = [job for job in self._jobs.values() if job.cancelled]
            self._waiting = [entry for entry in self._waiting if not entry[1].cancelled]
            heapq.heapify(self._waiting)
        # listeners are called without the lock; rows that they give up are free for those who wait
        for job in cancelled:
            scheduler.end(job, "abort")
        with self._changed:
            while self._waiting and len(scheduler.jobs) < self._rows:
                scheduler.admit(heapq.heappop(self._waiting)[1])
        if scheduler.jobs:
            scheduler.step()
        return True

    def _fail(self, scheduler: Scheduler | None, error: BaseException) -> None:
        """The engine cannot go on: all requests fail with the cause."""
        with self._changed:
            self._state, self._error = "failed", error
            jobs = [job for job in self._jobs.values() if not job.ended]
            self._jobs.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for job in jobs:
            if scheduler is not None:
                scheduler.fail(job, error)
