"""The router: what the routes of the server ask for completions, as they would ask an engine. It chooses the processes, puts
their events in order, and begins a completion again whose process was lost.

Every request gets exactly one ``Finished`` or ``Failed``. What comes for a try that is over, or from an epoch that is, is
counted and dropped.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from erniecore_generation.engine.prefix import BLOCK, text_blocks
from erniecore_generation.engine.requests import (
    EngineStats,
    EngineStopped,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Listener,
    QueueFull,
    State,
    Ticket,
    Tokens,
    Unavailable,
)
from erniecore_generation.prompts import check_request

from erniecore.api import ErnieError, Json, UsageError
from erniecore.api.command import note
from erniecore_disaggregated.calls import Call
from erniecore_disaggregated.cluster import Cluster, Member
from erniecore_disaggregated.config import DisaggregatedConfig
from erniecore_disaggregated.controller import Controller, Targets
from erniecore_disaggregated.messages import check_portable, error_from, request_json, scored_from, tokens_from
from erniecore_disaggregated.policy import Policy, Role, choose_decode, choose_prefill
from erniecore_disaggregated.shared import MediaFiles

#: seconds between two looks at processes, times and roles
_LOOK = 0.1


@dataclass(slots=True)
class Tally:
    """What the router has counted.

    Attributes:
        transfers: (bytes, seconds) of hand-offs that nobody has asked for yet.
        stale: messages of tries or epochs that were over.
    """

    finished: int = 0
    aborted: int = 0
    failed: int = 0
    new_tokens: int = 0
    retried: int = 0
    undelivered: int = 0
    stale: int = 0
    handed: int = 0
    transfers: list[tuple[int, float]] = field(default_factory=list)


class Router:
    """Completions by several processes, with the interface of an engine."""

    def __init__(self, settings: DisaggregatedConfig, directory: Path) -> None:
        self.settings = settings
        self.cluster = Cluster(settings, directory, self)
        self.tally = Tally()
        self._policy: Policy = settings.policy if settings.prefix_bytes else "load"
        targets = Targets(settings.target_ttft, settings.target_tpot, settings.hysteresis, settings.dwell_seconds)
        self.controller = Controller(targets)
        self.description: Json = {}
        self._media = MediaFiles()
        self._calls: dict[int, Call] = {}
        self._pending: list[tuple[tuple[int, int], Call]] = []
        self._numbers = 0
        self._state: State = "new"
        self._lock, self._changed = self.cluster.lock, self.cluster.changed

    def start(self) -> None:
        """Start the processes, unless they are there. Raises ``EnvironmentFault`` when one does not start."""
        if self._state != "new":
            return
        try:
            self.description = self.cluster.start()
        except BaseException:
            self._state = "failed"
            self.cluster.stop()
            raise
        self._state = "running"
        threading.Thread(target=self._look, name="erniecore-router", daemon=True).start()

    def submit(self, request: GenerationRequest, listener: Listener) -> Ticket:
        """Queue a request; from any thread.

        Raises:
            UsageError: a request that no engine takes, or only one in this process. QueueFull: as many wait as may.
            EngineStopped: no requests are taken.
        """
        check_portable(request)
        check_request(request, self.description["vocab_size"], self.description["context"])
        # of a prompt with images the text decides alone: hashing pixels here would hold up other requests
        keys = tuple(block.key for block in text_blocks(request.ids, request.adapter or "", BLOCK))
        with self._lock:
            if self._state != "running":
                raise EngineStopped("no requests are taken", found=self._state)
            waiting = len(self._calls) - sum(s.rows for s in self.cluster.states if s.role == "decode")
            if waiting >= self.settings.waiting:
                raise QueueFull("too many requests wait", found=str(waiting), fix="try again in a moment")
            call = Call(self._numbers, request, listener, keys)
            self._numbers += 1
            self._calls[call.number] = call
            if request.media is None:
                heapq.heappush(self._pending, (call.order, call))
                self._dispatch()
            else:
                self._media.share(call.number, request.media, lambda reason: self._shared(call, reason))
        return Ticket(call.number, request)

    def _shared(self, call: Call, reason: str) -> None:
        """The images of a request lie in shared memory, or do not."""
        with self._lock:
            if call.ended:
                self._release_media(call)
            elif reason:
                self._fail(call, Unavailable("no room for the images of a prompt", found=reason, fix="try again later"))
            else:
                heapq.heappush(self._pending, (call.order, call))
                self._dispatch()

    def _release_media(self, call: Call) -> None:
        if call.request.media is not None:
            self._media.release(call.number, call.request.media)

    def cancel(self, ticket: Ticket) -> None:
        """End a request: both of its processes free what they have of it. One that has ended stays as it is."""
        with self._lock:
            call = self._calls.get(ticket.number)
            if call is not None:
                self.tally.aborted += 1
                self._end(call, [call.aborted()])

    def stats(self) -> EngineStats:
        """All processes at this moment."""
        with self._lock:
            engines = [m.told["engine"] for m in self.cluster.members.values() if "engine" in m.told]
            names = ("steps", "prompt_tokens", "cached_tokens", "prefix_blocks", "prefix_bytes", "prefix_queries")
            total = {name: sum(e[name] for e in engines) for name in (*names, "prefix_hits", "draft_tokens")}
            tally, waiting = self.tally, len(self._pending)
            queued = {call.number: call.request.adapter or "" for _, call in self._pending}
            placed = {call.request.adapter or "" for call in self._calls.values() if call.number not in queued}
            return EngineStats(
                state=self._state, error="", invariant=all(e["invariant"] for e in engines),
                rows=sum(s.rows for s in self.cluster.states if s.role == "decode"),
                running=len(self._calls) - waiting, waiting=waiting, new_tokens=tally.new_tokens,
                accepted_tokens=sum(e["accepted_tokens"] for e in engines),
                finished=tally.finished, aborted=tally.aborted, failed=tally.failed,
                running_adapters=tuple(sorted(placed - {""})), waiting_adapters=tuple(sorted({*queued.values()} - {""})),
                **total,
            )  # fmt: skip

    def stop(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests, finish those that are there for at most ``timeout`` seconds, and end the processes."""
        with self._lock:
            self._state = "draining"
            if drain:
                self._changed.wait_for(lambda: not self._calls, timeout)
            for call in list(self._calls.values()):
                self.cancel(Ticket(call.number, call.request))
            self._state = "stopped"
        self._media.close()
        self.cluster.stop()

    def message(self, member: Member, head: Json) -> None:
        """A process has said something about a request."""
        call = self._calls.get(int(str(head["key"]).split(".", 1)[0]))
        if call is None or head["key"] != call.key or call.epochs.get(member.name) != head["epoch"]:
            self.tally.stale += 1
            return
        handlers: dict[str, Callable[[Call, Member, Json], None]] = {
            "tokens": self._tokens, "scored": self._scored, "finished": self._finished, "failed": self._failed,
            "adopted": self._adopted, "handed": self._handed, "undelivered": self._undelivered,
            "refused": self._undelivered,
        }  # fmt: skip
        handlers[head["type"]](call, member, head)

    def lost(self, member: Member) -> None:
        """A process is gone: what it had to do begins again, if the other process cannot go on without it."""
        for key in list(member.calls):
            call = self._calls[int(key.split(".", 1)[0])]
            if call.prefill == member.name and call.adopted and not call.incomplete:
                continue
            self._again(call, f"{member.name} was lost: {member.fault}")
        self._dispatch()

    def _tokens(self, call: Call, member: Member, head: Json) -> None:
        if call.prefill == member.name:
            self._computed(call)
        first = not call.first
        try:
            events = call.tokens(head["at"], tokens_from(head))
        except ErnieError as error:
            self._fail(call, error)
            return
        if first and call.first:
            self.controller.first_token(time.monotonic(), call.first - call.submitted)
        self._give(call, events)

    def _scored(self, call: Call, member: Member, head: Json) -> None:
        self._give(call, call.prompt_scored(scored_from(head)))

    def _finished(self, call: Call, member: Member, head: Json) -> None:
        fields = {name: head[name] for name in Finished.__dataclass_fields__}
        self._give(call, call.finished(head["at"], Finished(**fields)))

    def _failed(self, call: Call, member: Member, head: Json) -> None:
        self._fail(call, error_from(head))

    def _adopted(self, call: Call, member: Member, head: Json) -> None:
        call.adopted = True
        self._computed(call)

    def _handed(self, call: Call, member: Member, head: Json) -> None:
        self.tally.handed += 1
        self.tally.transfers.append((head["bytes"], head["seconds"]))
        call.cached = head["cached"]
        member.calls.discard(call.key)
        self._dispatch()

    def _undelivered(self, call: Call, member: Member, head: Json) -> None:
        self.tally.undelivered += 1
        if not (call.adopted and not call.incomplete):
            self._again(call, head["reason"])
        self._dispatch()

    def _computed(self, call: Call) -> None:
        """The first process has done its part, but for the hand-off."""
        if not call.computed and call.prefill:
            call.computed = True
            state = self.cluster.members[call.prefill].state
            state.prompts -= 1
            state.queued_tokens -= call.queued

    def _give(self, call: Call, events: Sequence[Event]) -> None:
        """Events for the client; the last one ends the request."""
        if call.ended:
            self._end(call, events)
            return
        for event in events:
            self._tell(call, event)

    def _tell(self, call: Call, event: Event) -> None:
        self.tally.new_tokens += len(event.ids) if isinstance(event, Tokens) else 0
        try:
            call.listener(event)
        except Exception:
            if not call.ended:
                self.cancel(Ticket(call.number, call.request))

    def _fail(self, call: Call, error: BaseException) -> None:
        self.tally.failed += 1
        self._end(call, [Failed(error)])

    def _end(self, call: Call, events: Sequence[Event]) -> None:
        """The last events of a request; nothing of it is left in any process."""
        call.ended = True
        self._release(call)
        self._release_media(call)
        self._calls.pop(call.number, None)
        self._pending = [entry for entry in self._pending if entry[1] is not call]
        heapq.heapify(self._pending)
        for event in events:
            self._tell(call, event)
            if isinstance(event, Finished) and event.reason != "abort":
                self.tally.finished += 1
                if event.new_tokens > 1:
                    self.controller.completed(time.monotonic(), event.decode_s / (event.new_tokens - 1))
        self._changed.notify_all()
        self._dispatch()

    def _release(self, call: Call) -> None:
        """The current try is over: its processes forget it."""
        self._computed(call)
        for name in {call.prefill, call.decode} - {""}:
            member = self.cluster.members[name]
            if call.key in member.calls:
                member.calls.discard(call.key)
                member.send({"type": "cancel", "key": call.key})
        if call.decode:
            state = self.cluster.members[call.decode].state
            state.completions -= 1
            state.kv_tokens -= self._kv_tokens(call)
        call.abandon()

    def _again(self, call: Call, reason: str) -> None:
        """Begin a request again, or fail it after too many tries."""
        self._release(call)
        if call.tries > self.settings.retries:
            found = f"{reason} (try {call.tries})"
            self._fail(call, Unavailable("the completion could not be computed", found=found, fix="send it again"))
            return
        self.tally.retried += 1
        heapq.heappush(self._pending, (call.order, call))

    def _dispatch(self) -> None:
        """Send waiting requests to processes, as long as there is something free."""
        while self._pending:
            call = self._pending[0][1]
            cluster = self.cluster
            prefill = choose_prefill(cluster.states, call.keys, len(call.request.ids), self._policy)
            decode = choose_decode(cluster.states)
            if prefill is None or decode is None:
                return
            heapq.heappop(self._pending)
            try:
                media, file = self._media.described(call.request.media)
            except OSError as error:
                self._shared(call, error.strerror or str(error))
                continue
            call.begin(prefill.name, decode.name, {w.name: w.epoch for w in (prefill, decode)})
            call.queue_s = time.perf_counter() - call.submitted
            cached = prefill.prefix.hits(call.keys) if self._policy == "prefix" else 0
            call.queued = len(call.request.ids) - min(cached, len(call.request.ids))
            prefill.prompts += 1
            prefill.queued_tokens += call.queued
            prefill.prefix.add(call.keys)
            decode.completions += 1
            decode.kv_tokens += self._kv_tokens(call)
            first, second = cluster.members[prefill.name], cluster.members[decode.name]
            for member in (first, second):
                member.calls.add(call.key)
            decoder = [second.name, second.address, decode.epoch]
            head = {"type": "prefill", "key": call.key, "epoch": prefill.epoch, "decoder": decoder}
            first.send({**head, "request": request_json(call.request), "media": media}, file)

    def _kv_tokens(self, call: Call) -> int:
        return len(call.request.ids) + call.request.max_new_tokens

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK)
            with self._lock:
                if self._state == "stopped":
                    return
                self.cluster.look(time.monotonic())
                self._dispatch()
                self._give_up()
                decision = self._decision() if self._state == "running" else None
            if decision is not None:
                # this thread goes on looking while a process is drained
                threading.Thread(target=self._switch, args=decision, name="erniecore-switch", daemon=True).start()

    def _give_up(self) -> None:
        """Fail what waits for a role that no process will have again."""
        for role in ("prefill", "decode"):
            members = [m for m in self.cluster.members.values() if m.state.role == role]
            dead = [m for m in members if m.state.status == "lost" and len(m.starts) >= self.settings.restarts]
            if members and len(dead) == len(members):
                for _, call in list(self._pending):
                    error = Unavailable(f"no process is left for {role}", found=members[0].fault)
                    self._fail(call, error)

    def _decision(self) -> tuple[str, Role] | None:
        settings = self.settings
        if not (settings.target_ttft and settings.target_tpot) or any(
            state.status == "draining" for state in self.cluster.states
        ):
            return None
        now, calls = time.perf_counter(), list(self._calls.values())
        waiting = [now - call.submitted for call in calls if not call.first]
        running = [(now - call.first) / (len(call.given) - 1) for call in calls if len(call.given) > 1]
        found = self.controller.look(time.monotonic(), self.cluster.states, waiting, running)
        return None if found is None else (found.name, found.role)

    def _switch(self, name: str, role: Role) -> None:
        try:
            self.switch(name, role)
        except UsageError as error:
            note(f"{name} does not change to {role}: {error.found}")

    def switch(self, name: str, role: Role) -> Json:
        """Change the role of a process; see ``Cluster.switch``."""
        found = self.cluster.switch(name, role)
        with self._lock:
            self.controller.changed(time.monotonic())
            self._dispatch()
        note(f"{name} does {role} since epoch {found['epoch']}, after {found['seconds']:g} s")
        return found
