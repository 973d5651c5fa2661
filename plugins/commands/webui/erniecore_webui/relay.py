"""Pass a request on to a server of this machine, and its answer back as it comes: the page may only ask its own origin.

When the browser hangs up, so do we; the model's server then stops to generate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import h11
from starlette.responses import JSONResponse, Response, StreamingResponse

_PIECE = 64 << 10


async def post(port: int, path: str, body: bytes, key: str) -> Response:
    """POST JSON to ``127.0.0.1:port``; its answer, streamed. 502 where it does not answer."""
    connection = h11.Connection(h11.CLIENT)
    headers = [("host", f"127.0.0.1:{port}"), ("content-type", "application/json"), ("connection", "close"),
               ("content-length", str(len(body))), ("authorization", f"Bearer {key}")]  # fmt: skip
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        return _lost(error)
    try:
        for event in (
            h11.Request(method="POST", target=path, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        answer = await _next(connection, reader)
        assert isinstance(answer, h11.Response)
    except (OSError, h11.RemoteProtocolError) as error:
        writer.close()
        return _lost(error)
    except asyncio.CancelledError:
        writer.close()
        raise
    kind = next((value.decode() for name, value in answer.headers if name == b"content-type"), "text/plain")
    return StreamingResponse(_parts(connection, reader, writer), answer.status_code, media_type=kind)


async def _parts(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncIterator[bytes]:
    """The body; an answer that breaks off ends early, which a client of server-sent events notices."""
    try:
        while isinstance(event := await _next(connection, reader), h11.Data):
            yield bytes(event.data)
    except (OSError, h11.RemoteProtocolError):
        return
    finally:
        writer.close()


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(_PIECE))
    return event


def _lost(error: Exception) -> Response:
    return JSONResponse({"error": {"message": f"the model's server does not answer: {error}"}}, 502)
