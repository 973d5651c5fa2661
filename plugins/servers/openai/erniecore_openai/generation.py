"""Between the event loop and the engine's thread: requests go in together, their events come back as pieces of text.

A client that goes away, an abort and a stop string end a completion in the engine, whose row is free before its next pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from erniecore_generation.completions import TextStream
from erniecore_generation.engine.requests import (
    EngineStopped,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Listener,
    PromptScored,
    QueueFull,
    Ticket,
    TokenLogprob,
    Tokens,
    Unavailable,
)

from erniecore.api import ErnieError, UsageError
from erniecore.api.command import note
from erniecore_openai.errors import ApiError

if TYPE_CHECKING:
    from erniecore_openai.state import ServedModel, Serving


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event adds to completion ``index``.

    Attributes:
        text: safe to show. ids, logprobs: new tokens; log-probabilities if asked for.
        prompt: log-probabilities of the prompt, if asked for, in a piece of its own.
        finish, end: why and how the completion ended, in its last piece.
    """

    index: int
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt: tuple[TokenLogprob | None, ...] | None = None
    finish: str = ""
    end: Finished | None = None


class _Choice:
    """One completion: its tokens become text."""

    def __init__(self, index: int, request: GenerationRequest, model: ServedModel, stop: Sequence[str]) -> None:
        self.index, self.request = index, request
        self.stream = TextStream(model.tokenizer, stop)
        self.closed = False

    def tokens(self, event: Tokens) -> Piece:
        """The text of new tokens. Those behind a stop string are left out."""
        text, taken = "", 0
        for token in event.ids:
            if self.closed:
                break
            taken += 1
            if token in self.request.stop_ids and taken == len(event.ids):
                text += self.stream.close()
                self.closed = True
            else:
                text += self.stream.push(token)
                self.closed = self.stream.stopped
        return Piece(self.index, text, event.ids[:taken], (event.logprobs or ())[:taken])

    def finished(self, event: Finished) -> Piece:
        """The end, with the text that was held back."""
        text = "" if self.closed else self.stream.close()
        finish = "stop" if self.stream.stopped else event.reason
        return Piece(self.index, text, finish=finish, end=event)


class Generation:
    """The completions of one HTTP request.

    Args:
        name: of the model. requests: for the engine, one per completion. stop: stop strings.
    """

    def __init__(
        self, serving: Serving, name: str, request_id: str, requests: Sequence[GenerationRequest], stop: Sequence[str]
    ) -> None:
        self.serving, self.name, self.request_id = serving, name, request_id
        self._model = serving.model_in_use
        self._choices = [_Choice(index, request, self._model, stop) for index, request in enumerate(requests)]
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._tickets: list[Ticket] = []

    def start(self) -> None:
        """Give all of them to the engine, or none. Raises ``ApiError``."""
        self.serving.check_room()
        mailbox = self.serving.mailbox()

        def listener(index: int) -> Listener:
            def hand_over(event: Event) -> None:
                mailbox.post(self._events, (index, event))

            return hand_over

        try:
            for choice in self._choices:
                self._tickets.append(self._model.engine.submit(choice.request, listener(choice.index)))
        except ErnieError as error:
            self.cancel()
            raise as_api_error(error) from error
        self.serving.began(self.request_id, self._tickets)

    def cancel(self) -> None:
        """End what has not ended."""
        for ticket in self._tickets:
            self._model.engine.cancel(ticket)
        self.serving.ended(self.request_id)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Everything as it comes. Raises ``ApiError`` where a completion failed. Whoever stops early calls ``cancel``."""
        left = len(self._choices)
        while left:
            index, event = await self._events.get()
            choice = self._choices[index]
            if isinstance(event, Tokens):
                if choice.closed:
                    continue
                yield choice.tokens(event)
                if choice.stream.stopped:
                    self._model.engine.cancel(self._tickets[index])
            elif isinstance(event, PromptScored):
                yield Piece(index, prompt=event.logprobs)
            elif isinstance(event, Finished):
                left -= 1
                piece = choice.finished(event)
                self.serving.metrics.finished(event, piece.finish, self.name)
                yield piece
            else:
                raise failure(event)


def failure(event: Failed) -> ApiError:
    """A completion that failed, for the client; the engine's own errors are not its business."""
    if isinstance(event.error, UsageError):
        return as_api_error(event.error)
    note(f"a completion failed: {type(event.error).__name__}: {event.error}")
    return ApiError(500, "the model could not compute this completion; the server's own output says why")


def as_api_error(error: ErnieError) -> ApiError:
    """An error of ours as one of the interface: the client's to fix, or to try again."""
    if isinstance(error, QueueFull):
        return ApiError(429, "too many requests wait; try again in a moment", code="queue_full")
    if isinstance(error, EngineStopped):
        return ApiError(503, "the server is stopping", code="draining")
    if isinstance(error, Unavailable):
        return ApiError(503, f"{error.message}; try again in a moment", code="unavailable")
    parts = [error.message, f" (got {error.found})" if error.found else ""]
    parts.append(f"; expected {error.expected}" if error.expected else "")
    return ApiError(400, "".join(parts), param=error.where or None, code="invalid_value")
