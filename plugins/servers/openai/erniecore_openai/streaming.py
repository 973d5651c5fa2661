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
    following: asyncio.Future[Json] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(_next(chunks))
            done, _ = await asyncio.wait([following], timeout=seconds)
            if not done:
                yield ": waiting\n\n"
                continue
            chunk, following = following.result(), None
            yield f"data: {_dumped(chunk)}\n\n"
    except StopAsyncIteration:
        yield "data: [DONE]\n\n"
    except ApiError as error:
        yield f"data: {_dumped(error_object(error))}\n\n"
    finally:
        if following is not None:
            following.cancel()
        generation.cancel()


async def _next(chunks: AsyncIterator[Json]) -> Json:
    return await chunks.__anext__()


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
