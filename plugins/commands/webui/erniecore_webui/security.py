"""Who may ask, and how much. Everything here happens before a page is asked.

A browser shows that it knows the token by a cookie that scripts cannot read; forms and scripts of our own pages send a second
secret (CSRF), which other origins cannot read. The Host header must be one of ours, which stops names that are rebound to
loopback; an Origin must be ours too. No page can load or run anything that is not in this package.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from erniecore_webui.site import Site

#: Bytes of a form.
FORM_BYTES = 1 << 20
#: Not held in memory: the secret is in a header, and the page takes the body in parts, as many bytes as were announced.
_STREAMED = ("/data/upload", "/chat/image")
#: Answered without the token: styles, and the page that asks for it.
_OPEN = ("/static/", "/login")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_WRONG_TOKEN_SECONDS = 1.0


def secret(token: str, purpose: str) -> str:
    """What stands for the token: in the cookie, in forms."""
    return hmac.new(token.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def cookie_name(request: Request) -> str:
    """Its own for each port: browsers share cookies among ports."""
    return f"ernie_web_{request.url.port or 80}"


def knows_token(site: Site, given: str) -> bool:
    """Whether this is the token, in constant time."""
    return hmac.compare_digest(secret(given, "same"), secret(site.token, "same"))


def signed_in(request: Request, site: Site, to: str) -> Response:
    """On to ``to``, with the cookie."""
    response = RedirectResponse(to, 303)
    response.set_cookie(
        cookie_name(request), secret(site.token, "session"), max_age=30 * 86400, httponly=True, samesite="strict",
        secure=_scheme(request) == "https",
    )  # fmt: skip
    return response


def _scheme(request: Request) -> str:
    """What the browser asked with, which a proxy in front says in a header. No page of another origin can send that header:
    browsers ask first, and are refused."""
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return "https" if forwarded == "https" else request.url.scheme


class Shield:
    """ASGI middleware that lets nothing pass that is not ours."""

    def __init__(self, app: ASGIApp, *, site: Site) -> None:
        self._app, self._site = app, site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with headers that bind the page."""
        if scope["type"] != "http":
            return
        request = Request(scope)

        async def bound(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-cache" if scope["path"].startswith("/static/") else "no-store")
            await send(message)

        refused = await self._refusal(request)
        if refused is None and scope["method"] not in ("GET", "HEAD"):
            try:
                receive = await self._checked(request, receive)
            except _RefusedError as error:
                refused = PlainTextResponse(error.args[1], error.args[0], {"connection": "close"})
        await (refused or self._app)(scope, receive, bound)

    async def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", "").lower(), request.headers.get("origin")
        if host not in self._site.hosts:
            return PlainTextResponse("this name is not one of mine; allow it with --allow-host", 403)
        if origin is not None and origin.lower() != f"{_scheme(request)}://{host}":
            return PlainTextResponse("a page of another origin may not ask", 403)
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and request.method != "GET":
            return PlainTextResponse("a page of another origin may not ask", 403)
        path = request.url.path
        token = request.query_params.get("token")
        if token is not None and request.method == "GET":
            if knows_token(self._site, token):
                rest = urlencode([(k, v) for k, v in request.query_params.multi_items() if k != "token"])
                return signed_in(request, self._site, path + ("?" + rest if rest else ""))
            await asyncio.sleep(_WRONG_TOKEN_SECONDS)
        if path.startswith(_OPEN) or self._has_cookie(request):
            return None
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/login?" + urlencode({"to": path}), 303)
        return PlainTextResponse("the token is missing", 401)

    def _has_cookie(self, request: Request) -> bool:
        given = request.cookies.get(cookie_name(request), "")
        return hmac.compare_digest(given.encode(), secret(self._site.token, "session").encode())

    async def _checked(self, request: Request, receive: Receive) -> Receive:
        """The body within limits, after its CSRF secret was found. Raises ``_RefusedError``."""
        headers, expected = request.headers, secret(self._site.token, "csrf")
        if request.url.path in _STREAMED:
            _check_secret(headers.get("x-csrf-token", ""), expected)
            if not headers.get("content-length", "").isdecimal():
                raise _RefusedError(411, "how long is it? content-length is missing")
            return receive
        length = headers.get("content-length") or "0"
        if not length.isdecimal() or int(length) > FORM_BYTES:
            raise _RefusedError(413, f"longer than {FORM_BYTES} bytes")
        given = headers.get("x-csrf-token", "")
        body = await _body(receive, FORM_BYTES)
        if not given and _is_form(headers):
            given = parse_qs(body.decode(errors="replace"), keep_blank_values=True).get("csrf", [""])[0]
        if request.url.path != "/login":
            _check_secret(given, expected)
        return _replayed(body, receive)


class _RefusedError(Exception):
    """Status and text."""


def _check_secret(given: str, expected: str) -> None:
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise _RefusedError(403, "the form is not one of mine, or it is old: load the page again")


def _is_form(headers: Headers) -> bool:
    return headers.get("content-type", "").startswith("application/x-www-form-urlencoded")


async def _body(receive: Receive, most: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _RefusedError(400, "the client is gone")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _RefusedError(413, f"longer than {most} bytes")
        if not message.get("more_body"):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def once() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once
