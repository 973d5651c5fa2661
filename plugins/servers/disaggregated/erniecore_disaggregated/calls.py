"""A completion on its way through the processes: what its client has got, and what the current try of it has brought.

A completion is determined by its request, so a second try brings the same tokens as the first one. Those that the client has
already are compared and left out; the client notices nothing but the time. Tokens come from two processes and are put in
order by their number.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from erniecore_generation.engine.requests import Event, Finished, GenerationRequest, Listener, PromptScored, Tokens

from erniecore.api import EnvironmentFault


@dataclass(eq=False, slots=True)
class Call:
    """One completion.

    Attributes:
        keys: of the prompt's blocks. tries: that have begun, the current one included. key: of the current one.
        prefill, decode: the processes of the current try. epochs: theirs when the try began.
        adopted: the decoder has the row. queued: tokens that the first process has to compute.
        given: tokens of the completion that the client has. cached: tokens of the prompt that were in a prefix cache.
    """

    number: int
    request: GenerationRequest
    listener: Listener
    keys: tuple[bytes, ...]
    submitted: float = field(default_factory=time.perf_counter)
    tries: int = 0
    prefill: str = ""
    decode: str = ""
    epochs: dict[str, int] = field(default_factory=dict)
    adopted: bool = False
    computed: bool = False
    queued: int = 0
    first: float = 0.0
    queue_s: float = 0.0
    cached: int = 0
    given: list[int] = field(default_factory=list)
    scored: bool = False
    ended: bool = False
    _brought: int = 0
    _early: dict[int, Tokens] = field(default_factory=dict)
    _end: tuple[int, Finished] | None = None

    @property
    def key(self) -> str:
        """Of the current try; messages with another one are of an earlier try."""
        return f"{self.number}.{self.tries}"

    @property
    def order(self) -> tuple[int, int]:
        """Smaller ones come first."""
        return self.request.priority, self.number

    def begin(self, prefill: str, decode: str, epochs: dict[str, int]) -> None:
        """Begin the next try."""
        self.tries += 1
        self.prefill, self.decode, self.epochs = prefill, decode, epochs

    def abandon(self) -> None:
        """The current try is over, and what comes of it is stale; the client keeps what it has."""
        self.prefill, self.decode, self.epochs = "", "", {}
        self.adopted = self.computed = False
        self._brought, self._early, self._end = 0, {}, None

    def aborted(self) -> Finished:
        """The end of a request that is cancelled."""
        return self._timed(Finished("abort", len(self.request.ids), self.cached, len(self.given), 0.0, 0.0, 0.0))

    def prompt_scored(self, event: PromptScored) -> list[Event]:
        """What the client gets: the log-probabilities once."""
        first, self.scored = not self.scored, True
        return [event] if first else []

    def tokens(self, at: int, event: Tokens) -> list[Event]:
        """What the client gets when tokens have come, ``at`` tokens after the first one of the completion.

        Raises:
            EnvironmentFault: they differ from those that the client has.
        """
        self._early[at] = event
        found: list[Event] = []
        while self._brought in self._early:
            event = self._early.pop(self._brought)
            known = self.given[self._brought : self._brought + len(event.ids)]
            if tuple(known) != event.ids[: len(known)]:
                raise EnvironmentFault(
                    "a completion that began again differs from what was sent", where=f"token {self._brought}",
                    found=str(event.ids), expected=str(known), fix="send the request again",
                )  # fmt: skip
            self._brought += len(event.ids)
            if len(known) < len(event.ids):
                scores = None if event.logprobs is None else event.logprobs[len(known) :]
                found.append(replace(event, ids=event.ids[len(known) :], logprobs=scores))
                self.given += event.ids[len(known) :]
        if self.given and not self.first:
            self.first = time.perf_counter()
        return found + self._finish()

    def finished(self, at: int, event: Finished) -> list[Event]:
        """What the client gets when the last process is done; the end itself, once all tokens are there."""
        self._end = (at, event)
        return self._finish()

    @property
    def incomplete(self) -> bool:
        """Whether tokens are missing that come from the first process alone."""
        return self._brought == 0

    def _finish(self) -> list[Event]:
        if self._end is None or self._end[0] != self._brought:
            return []
        self.ended = True
        return [self._timed(self._end[1])]

    def _timed(self, event: Finished) -> Finished:
        now = time.perf_counter()
        first = self.first or now
        prefill = first - self.submitted - self.queue_s
        return replace(event, queue_s=self.queue_s, prefill_s=prefill, decode_s=now - first)
