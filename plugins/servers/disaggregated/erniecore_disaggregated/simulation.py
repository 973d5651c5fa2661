"""A discrete-event simulation of the server: the same policies and the same controller as the router's, over a clock of its
own and processes of which only times are known. For choosing a split, and for seeing what changes of roles are worth.

What is simulated: prompts wait with the router for a process that has room, are computed one after the other (``PREFILL``
seconds, in proportion to the tokens that its prefix cache lacks, within a fixed cost), are handed over, and wait for a row; a
decoder makes a token for each of its rows per step, whose time grows with the rows. A change of role waits until the process
is empty. What is not: cancellations, lost processes, tokens that a prefix cache has dropped.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from erniecore.api import Json
from erniecore_disaggregated.controller import Controller, Targets
from erniecore_disaggregated.policy import (
    Policy,
    PrefixIndex,
    Role,
    WorkerState,
    choose_decode,
    choose_prefill,
    may_switch,
)

#: seconds between two looks of the controller, as in the router
LOOK = 0.1
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace.

    Attributes:
        at: seconds from the start. prompt, completion: tokens. prefix: number of a common beginning; 0: none.
        shared: tokens of that beginning.
    """

    at: float
    prompt: int
    completion: int
    prefix: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """What a process takes, in seconds; measured by ``python -m benchmarks.disaggregation calibrate``.

    Attributes:
        prefill_base, prefill_token: of a prompt, and of each token of it that is computed.
        handoff_base, handoff_token: from the last token of a prompt to the row.
        step_base, step_row: of a step of decoding, and of each row in it.
    """

    prefill_base: float
    prefill_token: float
    handoff_base: float
    handoff_token: float
    step_base: float
    step_row: float


@dataclass(slots=True)
class Outcome:
    """What a request got: seconds to the first token, and for each further one."""

    arrival: Arrival
    ttft: float = 0.0
    tpot: float = 0.0


@dataclass(eq=False, slots=True)
class _Call:
    arrival: Arrival
    number: int
    keys: tuple[bytes, ...]
    queued: int = 0
    prefill: str = ""
    decode: str = ""
    first: float = 0.0
    made: int = 0


@dataclass(slots=True)
class _Decoder:
    """What a process that decodes has: rows, those that wait for one, and whether a step is under way."""

    rows: list[_Call] = field(default_factory=list)
    waiting: deque[_Call] = field(default_factory=deque)
    busy: bool = False


class Simulation:
    """One run over a trace.

    Args:
        split: processes that compute prompts and that decode, at the start. targets: with zero seconds nothing switches.
        rows: completions that a process decodes together.

    Attributes:
        outcomes: of the requests that are done. switches: (seconds, process, role) of the changes of roles.
    """

    def __init__(
        self, times: ServiceTimes, split: tuple[int, int], targets: Targets, *, switching: bool, rows: int = 8,
        policy: Policy = "prefix",
    ) -> None:  # fmt: skip
        self._times, self._targets, self._policy = times, targets, policy
        self._controller = Controller(targets) if switching else None
        counts: list[tuple[Role, int]] = [("prefill", split[0]), ("decode", split[1])]
        roles = [role for role, count in counts for _ in range(count)]
        self.workers = {
            f"worker-{number}": WorkerState(f"worker-{number}", role, 0, "open", rows, prefix=PrefixIndex(_BLOCK))
            for number, role in enumerate(roles)
        }
        self.outcomes: list[Outcome] = []
        self.switches: list[tuple[float, str, Role]] = []
        self._now = 0.0
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._pending: deque[_Call] = deque()
        self._active: dict[int, _Call] = {}
        self._computing: dict[str, deque[_Call]] = {name: deque() for name in self.workers}
        self._decoders = {name: _Decoder() for name in self.workers}
        self._wishes: dict[str, Role] = {}

    def run(self, trace: Sequence[Arrival]) -> list[Outcome]:
        """Serve a trace to its end."""
        for arrival in trace:
            self._at(arrival.at, lambda arrival=arrival: self._arrive(arrival))  # type: ignore[misc]
        if self._controller is not None:
            self._at(0.0, self._look)
        self._left = len(trace)
        while self._left:
            self._now, _, event = heapq.heappop(self._events)
            event()
        return self.outcomes

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def _arrive(self, arrival: Arrival) -> None:
        number = next(self._numbers)
        keys = []
        for block in range(arrival.prompt // _BLOCK):
            owner = arrival.prefix if arrival.prefix and (block + 1) * _BLOCK <= arrival.shared else -number
            keys.append(f"{owner}.{block}".encode())
        self._pending.append(_Call(arrival, number, tuple(keys)))
        self._dispatch()

    def _dispatch(self) -> None:
        while self._pending:
            call, workers = self._pending[0], self.workers.values()
            prefill = choose_prefill(workers, call.keys, call.arrival.prompt, self._policy)
            decode = choose_decode(workers)
            if prefill is None or decode is None:
                return
            self._pending.popleft()
            cached = min(prefill.prefix.hits(call.keys), call.arrival.prompt - 1) if self._policy == "prefix" else 0
            call.prefill, call.decode, call.queued = prefill.name, decode.name, call.arrival.prompt - cached
            prefill.prompts += 1
            prefill.queued_tokens += call.queued
            prefill.prefix.add(call.keys)
            decode.completions += 1
            decode.kv_tokens += call.arrival.prompt + call.arrival.completion
            self._active[call.number] = call
            queue = self._computing[prefill.name]
            queue.append(call)
            if len(queue) == 1:
                self._compute(prefill.name)

    def _compute(self, name: str) -> None:
        call = self._computing[name][0]
        seconds = self._times.prefill_base + self._times.prefill_token * call.queued
        self._at(self._now + seconds, lambda: self._computed(name, call))

    def _computed(self, name: str, call: _Call) -> None:
        state = self.workers[name]
        state.prompts -= 1
        state.queued_tokens -= call.queued
        self._computing[name].popleft()
        if self._computing[name]:
            self._compute(name)
        call.first, call.made = self._now, 1
        if self._controller is not None:
            self._controller.first_token(self._now, self._now - call.arrival.at)
        handoff = self._times.handoff_base + self._times.handoff_token * call.arrival.prompt
        self._at(self._now + handoff, lambda: self._adopt(call))
        self._emptied(name)
        self._dispatch()

    def _adopt(self, call: _Call) -> None:
        if call.made >= call.arrival.completion:
            self._end(call)
            return
        self._decoders[call.decode].waiting.append(call)
        self._step(call.decode)

    def _step(self, name: str) -> None:
        decoder = self._decoders[name]
        if decoder.busy:
            return
        while decoder.waiting and len(decoder.rows) < self.workers[name].rows:
            decoder.rows.append(decoder.waiting.popleft())
        if decoder.rows:
            decoder.busy = True
            seconds = self._times.step_base + self._times.step_row * len(decoder.rows)
            self._at(self._now + seconds, lambda: self._stepped(name))

    def _stepped(self, name: str) -> None:
        decoder = self._decoders[name]
        decoder.busy = False
        for call in decoder.rows:
            call.made += 1
        done = [call for call in decoder.rows if call.made >= call.arrival.completion]
        decoder.rows = [call for call in decoder.rows if call.made < call.arrival.completion]
        for call in done:
            self._end(call)
        self._step(name)

    def _end(self, call: _Call) -> None:
        state, arrival = self.workers[call.decode], call.arrival
        state.completions -= 1
        state.kv_tokens -= arrival.prompt + arrival.completion
        del self._active[call.number]
        tpot = (self._now - call.first) / (arrival.completion - 1) if arrival.completion > 1 else 0.0
        self.outcomes.append(Outcome(arrival, call.first - arrival.at, tpot))
        if self._controller is not None and arrival.completion > 1:
            self._controller.completed(self._now, tpot)
        self._left -= 1
        self._emptied(call.decode)
        self._dispatch()

    def _look(self) -> None:
        assert self._controller is not None
        calls = list(self._active.values())
        waiting = [self._now - call.arrival.at for call in (*self._pending, *calls) if not call.made]
        running = [(self._now - call.first) / (call.made - 1) for call in calls if call.made > 1]
        if not self._wishes:
            found = self._controller.look(self._now, self.workers.values(), waiting, running)
            if found is not None:
                self._wishes[found.name] = found.role
                self.workers[found.name].status = "draining"
                self._emptied(found.name)
        self._at(self._now + LOOK, self._look)

    def _emptied(self, name: str) -> None:
        """Commit a change of role, once its process has nothing left."""
        state = self.workers[name]
        if name not in self._wishes or state.prompts or state.completions:
            return
        role = self._wishes.pop(name)
        if not may_switch(self.workers.values(), name):
            state.role = role
            state.epoch = len(self.switches) + 1
            self.switches.append((self._now, name, role))
            assert self._controller is not None
            self._controller.changed(self._now)
        state.status = "open"
        self._dispatch()


@dataclass(frozen=True, slots=True)
class Score:
    """How many requests met their targets: both, the one for the first token, the one for further tokens."""

    name: str
    both: float
    ttft: float
    tpot: float
    switches: int


def score(name: str, simulation: Simulation, targets: Targets) -> Score:
    """The shares of a run that is over."""
    found = simulation.outcomes
    first = [outcome.ttft <= targets.ttft for outcome in found]
    other = [outcome.tpot <= targets.tpot for outcome in found]
    both = [a and b for a, b in zip(first, other, strict=True)]
    share_both, share_first, share_other = (sum(met) / len(found) for met in (both, first, other))
    return Score(name, share_both, share_first, share_other, len(simulation.switches))


def compare(
    trace: Sequence[Arrival], times: ServiceTimes, processes: int, targets: Targets, rows: int = 8
) -> list[Score]:
    """Every fixed split of so many processes, then switching from each of them; best first among each."""
    found = []
    for switching in (False, True):
        scores = []
        for prefill in range(1, processes):
            split = (prefill, processes - prefill)
            simulation = Simulation(times, split, targets, switching=switching, rows=rows)
            simulation.run(trace)
            name = f"{split[0]} + {split[1]}{', switching' if switching else ''}"
            scores.append(score(name, simulation, targets))
        found += sorted(scores, key=lambda entry: -entry.both)
    return found


def scores_json(scores: Sequence[Score]) -> list[Json]:
    """Scores as JSON, best fixed split first."""
    return [asdict(entry) for entry in scores]
