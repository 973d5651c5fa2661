"""Server-sent events: one JSON object per ``data:`` line, comments while nothing happens, ``[DONE]`` at the end.

A stream whose client is gone is closed by the server, and with it its generation. Before a stream begins, errors are answers
with a status; after that they are an event.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

from erniecore.api import Json
from erniecore_openai.errors import ApiError, error_object
from erniecore_openai.generation import Generation

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def sse(chunks: AsyncIterator[Json], generation: Generation, seconds: float) -> StreamingResponse:
    """The answer that streams ``chunks``.

    Args:
        seconds: after so long without one, a comment is sent.
    """
    headers = {**HEADERS, "x-request-id": generation.request_id}
    return StreamingResponse(_lines(chunks, generation, seconds), media_type="text/event-stream", headers=headers)


async def _lines(chunks: AsyncIterator[Json], generation: Generation, seconds: float) -> AsyncIterator[str]:
    """Lines as soon as they are there, those that wait already together. One task runs through the chunks: a task and a timer for
    each of them would take as long as all else that is done for a token."""
    lines: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
    filling = asyncio.ensure_future(_fill(lines, chunks))
    quiet = _Quiet(lines, seconds)
    try:
        ended = False
        while not ended:
            found = [await lines.get()]
            while not lines.empty():
                found.append(lines.get_nowait())
            text = "".join(line for line in found if isinstance(line, str))
            quiet.heard()
            if text:
                yield text
            for error in found:
                if isinstance(error, BaseException):
                    raise error
            ended = None in found
    finally:
        quiet.stop()
        filling.cancel()
        generation.cancel()


async def _fill(lines: asyncio.Queue[str | BaseException | None], chunks: AsyncIterator[Json]) -> None:
    """All lines of an answer, then None; or what it failed with."""
    try:
        async for chunk in chunks:
            lines.put_nowait(f"data: {_dumped(chunk)}\n\n")
        lines.put_nowait("data: [DONE]\n\n")
    except ApiError as error:
        lines.put_nowait(f"data: {_dumped(error_object(error))}\n\n")
    except Exception as error:
        lines.put_nowait(error)
    lines.put_nowait(None)


class _Quiet:
    """Puts a comment among the lines where none was sent for so many seconds; one timer, which looks when the last one was."""

    def __init__(self, lines: asyncio.Queue[str | BaseException | None], seconds: float) -> None:
        self._lines, self._seconds, self._loop = lines, seconds, asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def heard(self) -> None:
        """A line was sent."""
        self._last = self._loop.time()

    def _look(self) -> None:
        left = self._last + self._seconds - self._loop.time()
        if left <= 0:
            self._lines.put_nowait(": waiting\n\n")
            left = self._seconds
        self._timer = self._loop.call_later(left, self._look)

    def stop(self) -> None:
        """Comments end with the answer; a timer that is left would wake the loop behind it."""
        self._timer.cancel()


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def whole(request: Request, generation: Generation, answer: Callable[[], Any]) -> Any:
    """What the coroutine ``answer()`` returns, unless the client goes away first: then its generation ends at once."""
    answering = asyncio.ensure_future(answer())
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ApiError(499, "the client has closed the connection", close=True)
        return answering.result()
    finally:
        answering.cancel()
        gone.cancel()
        generation.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
