"""Who may ask, and how much: the check of the API key, and limits on bodies and on the time that they take.

Everything here happens before a request is looked at. The key is compared in constant time on every route but ``/health``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Coroutine
from math import isfinite
from typing import Any

import anyio
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from erniecore.api.files import parse_json
from erniecore_openai.errors import ApiError, error_object

#: Routes that anybody may ask: orchestrators have no key.
OPEN = frozenset({"/health"})


class Guard:
    """ASGI middleware that lets no request pass without the key."""

    def __init__(self, app: ASGIApp, *, key: str) -> None:
        self._app, self._key = app, _digest(key.encode()) if key else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] == "http" and self._key and scope["path"] not in OPEN and not self._knows(scope):
            error = ApiError(
                401, "a correct API key is needed: Authorization: Bearer KEY", code="invalid_api_key", close=True
            )
            await JSONResponse(error_object(error), 401, error.headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        return hmac.compare_digest(_digest(key.strip()), self._key) and scheme.lower() == b"bearer"


def _digest(key: bytes) -> bytes:
    """As long for every key, so that comparing tells nothing of its length."""
    return hashlib.sha256(key).digest()


class LimitedRequest(Request):
    """A request whose body is read within limits: bytes, seconds, depth; numbers are finite."""

    _content: bytes | None = None

    async def body(self) -> bytes:
        """The body. Raises ``ApiError`` 413 or 408."""
        if self._content is None:
            settings = self.app.state.serving.settings
            if (self.headers.get("content-length") or "0").isdecimal():
                _check_size(int(self.headers.get("content-length") or 0), settings.max_body_bytes)
            parts: list[bytes] = []
            size = 0
            try:
                with anyio.fail_after(settings.body_seconds):
                    async for part in self.stream():
                        size += len(part)
                        _check_size(size, settings.max_body_bytes)
                        parts.append(part)
            except TimeoutError:
                raise ApiError(408, f"the body took more than {settings.body_seconds:g} s", close=True) from None
            self._content = b"".join(parts)
        return self._content

    async def json(self) -> Any:
        """The body as JSON. Raises ``ApiError`` 400."""
        data = await self.body()
        try:
            value = parse_json(data)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is no JSON: {error}", code="invalid_json") from None
        if (b"NaN" in data or b"Infinity" in data or b"e" in data or b"E" in data) and not _finite(value):
            raise ApiError(400, "the body is no JSON: a number is infinite or NaN", code="invalid_json")
        if b"\\u" in data and not _encodable(value):
            raise ApiError(400, "the body is no JSON: half of a surrogate pair in a string", code="invalid_json")
        return value


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ApiError(413, f"the body is longer than {most} bytes", code="body_too_long", close=True)


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, float) or isfinite(value)


def _encodable(value: Any) -> bool:
    """Whether all strings are text: JSON can write code points that no text has."""
    if isinstance(value, dict):
        return all(_encodable(name) and _encodable(item) for name, item in value.items())
    if isinstance(value, list):
        return all(map(_encodable, value))
    return not isinstance(value, str) or not any("\ud800" <= c <= "\udfff" for c in value)


class LimitedRoute(APIRoute):
    """A route that reads bodies so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given such a request."""
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            return await handle(LimitedRequest(request.scope, request.receive))

        return limited
