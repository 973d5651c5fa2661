"""When a process changes its role: a controller that aims at targets for the time to the first token (TTFT) and the time for
each further token (TPOT). It only decides; time comes from the caller, so that the simulator runs this very code.

A pressure is a time over its target; above 1 the target is missed. A role gets a process from the other one when its own
pressure has been above ``1 + hysteresis`` at ``confirm`` looks in a row, while that of the other role is below ``1 -
hysteresis``, and its processes would be busy for less than that share of their time if there were one fewer. Between two
changes ``dwell`` seconds pass. Where both are pressed, nothing changes: there are too few processes.

What waits counts before it is late: by Little's law the last of n requests waits n over the rate of first tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from erniecore_disaggregated.policy import Role, WorkerState, least_busy, may_switch, usable

#: share of the times that have to be within the target
_QUANTILE = 0.9
#: looks in a row that have to agree
CONFIRM = 3
#: seconds over which a rate can be told
LEAST_SPAN = 1.0


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds to aim at; ``dwell``: between two changes of roles. ``window``: of times that are looked at, if the target for
    the first token is not longer."""

    ttft: float
    tpot: float
    hysteresis: float = 0.2
    dwell: float = 20.0
    window: float = 10.0
    confirm: int = CONFIRM

    @property
    def span(self) -> float:
        """Seconds that are looked at: in a shorter time nobody could say whether the target is met."""
        return max(self.window, self.ttft)


@dataclass(frozen=True, slots=True)
class Decision:
    """A process that should change to ``role``, and the pressures that say so."""

    name: str
    role: Role
    ttft_pressure: float
    tpot_pressure: float


class Controller:
    """Remembers times, and decides. Times are seconds of any clock that goes on.

    Attributes:
        ttft_pressure, tpot_pressure: at the last look.
    """

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.ttft_pressure = self.tpot_pressure = 0.0
        self._firsts: deque[tuple[float, float]] = deque()
        self._others: deque[tuple[float, float]] = deque()
        self._busy: deque[tuple[float, float, float]] = deque()
        self._since = float("-inf")
        self._changed = float("-inf")
        self._wish: tuple[Role, int] = ("prefill", 0)

    def first_token(self, now: float, seconds: float) -> None:
        """A completion has its first token, so long after its request."""
        self._firsts.append((now, seconds))

    def completed(self, now: float, seconds: float) -> None:
        """A completion is over, with so many seconds for each token behind the first one."""
        self._others.append((now, seconds))

    def changed(self, now: float) -> None:
        """A role has changed: times from before say nothing any more."""
        self._changed = self._since = now
        self._firsts.clear()
        self._others.clear()
        self._busy.clear()
        self._wish = ("prefill", 0)

    def look(
        self, now: float, workers: Iterable[WorkerState], waiting: Sequence[float], running: Sequence[float]
    ) -> Decision | None:
        """What should change now, if anything.

        Args:
            waiting: how long each request without a first token waits already.
            running: seconds per token so far, of each completion that has a first token.
        """
        workers, targets = list(workers), self.targets
        self._since = now if self._since == float("-inf") else self._since
        self.ttft_pressure = self._pressure(self._firsts, waiting, targets.ttft, now)
        if self._firsts and targets.ttft:
            rate = len(self._firsts) / max(min(targets.span, now - self._since), LEAST_SPAN)
            self.ttft_pressure = max(self.ttft_pressure, len(waiting) / rate / targets.ttft)
        self.tpot_pressure = self._pressure(self._others, running, targets.tpot, now)
        role = self._pressed(now, workers)
        count = self._wish[1] + 1 if role == self._wish[0] else 1
        self._wish = (role or "prefill", count if role else 0)
        if role is None or count < targets.confirm or now - self._changed < targets.dwell:
            return None
        found = least_busy(workers, "decode" if role == "prefill" else "prefill")
        if found is None or may_switch(workers, found.name):
            return None
        return Decision(found.name, role, self.ttft_pressure, self.tpot_pressure)

    def _pressed(self, now: float, workers: Sequence[WorkerState]) -> Role | None:
        """The role that needs a process which the other one can spare."""
        above, below = 1 + self.targets.hysteresis, 1 - self.targets.hysteresis
        prefill, decode = usable(workers, "prefill"), usable(workers, "decode")
        if not prefill or not decode:
            return None
        computing = sum(worker.prompts > 0 for worker in prefill) / len(prefill)
        decoding = sum(worker.completions for worker in decode) / sum(worker.rows for worker in decode)
        self._busy.append((now, computing, decoding))
        while self._busy[0][0] < now - self.targets.span:
            self._busy.popleft()
        busy = [sum(entry[place] for entry in self._busy) / len(self._busy) for place in (1, 2)]
        # where all rows are taken, requests wait for a decoder, however fast prompts are computed
        full = decoding >= 1
        first = 0.0 if full else self.ttft_pressure
        other = max(self.tpot_pressure, self.ttft_pressure) if full else self.tpot_pressure
        if len(decode) > 1 and first > above and max(other, busy[1] * len(decode) / (len(decode) - 1)) < below:
            return "prefill"
        if len(prefill) > 1 and other > above and max(first, busy[0] * len(prefill) / (len(prefill) - 1)) < below:
            return "decode"
        return None

    def _pressure(
        self, times: deque[tuple[float, float]], current: Sequence[float], target: float, now: float
    ) -> float:
        while times and times[0][0] < now - self.targets.span:
            times.popleft()
        # what is not over yet counts where it is late already: it will not be faster
        found = sorted([seconds for _, seconds in times] + [seconds for seconds in current if seconds > target])
        return found[int(_QUANTILE * (len(found) - 1))] / target if found and target else 0.0
