"""Live events of a run for a browser: the lines of its events file as they are written, by server-sent events.

The id of a message is the offset behind its last byte; a browser that comes back sends it and gets what it missed. Who is far
behind is told to load the thinned curves instead. Lines are passed on as they are: watching costs next to nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import StreamingResponse

from erniecore.api.runs import EVENTS_NAME
from erniecore_webui.rendering import site_of

#: bytes behind which a browser loads curves instead of lines; seconds between looks, and between signs of life
_MOST, _PAUSE, _ALIVE = 256 << 10, 1.0, 15.0
_STATE_LOOKS = 3


def events_since(path: Path, offset: int) -> tuple[bytes, int]:
    """Whole lines of the events behind ``offset``, and the offset behind them; -1: too many, or another file."""
    try:
        with (path / EVENTS_NAME).open("rb") as file:
            size = file.seek(0, 2)
            if size < offset or size - offset > _MOST:
                return b"", -1
            file.seek(offset)
            data = file.read(size - offset)
    except FileNotFoundError:
        return b"", offset
    whole = data.rfind(b"\n") + 1
    return data[:whole], offset + whole


def message(event: str, data: bytes, id_: int | None = None) -> bytes:
    """One server-sent event; each line of ``data`` is a line of its data."""
    lines = b"".join(b"data: " + line + b"\n" for line in data.rstrip(b"\n").replace(b"\r", b"").split(b"\n"))
    return (f"id: {id_}\n".encode() if id_ is not None else b"") + b"event: " + event.encode() + b"\n" + lines + b"\n"


def live(request: Request, path: Path, offset: int) -> StreamingResponse:
    """The stream of a run from ``offset`` on: ``events``, ``state`` when that changes, ``reload`` for who is too far behind."""
    site = site_of(request)

    async def messages() -> AsyncIterator[bytes]:
        nonlocal offset
        yield b"retry: 1000\n\n"
        state, quiet, look = "", 0.0, 0
        while not site.stopping.is_set():
            data, behind = events_since(path, offset)
            if behind < 0:
                yield message("reload", b"{}")
                return
            if data:
                offset, quiet = behind, 0.0
                yield message("events", data, offset)
            if look % _STATE_LOOKS == 0 or b'"run_end"' in data:
                now = (await asyncio.to_thread(site.index.summary, path)).state
                if now != state:
                    state = now
                    yield message("state", json.dumps({"state": state}).encode())
            look += 1
            quiet += _PAUSE
            if quiet > _ALIVE:
                quiet = 0.0
                yield b": alive\n\n"
            await asyncio.sleep(_PAUSE)

    return StreamingResponse(messages(), media_type="text/event-stream", headers={"cache-control": "no-store"})
