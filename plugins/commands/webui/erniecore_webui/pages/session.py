"""Signing in, and choices of one browser: language and colors."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore_webui.rendering import THEME_COOKIE, field, page, site_of
from erniecore_webui.security import knows_token, signed_in
from erniecore_webui.texts import COOKIE, LANGUAGES

_YEAR = 365 * 86400


async def login(request: Request) -> Response:
    """Ask for the token; with the right one, go to where the browser wanted to."""
    to = _own_path(request.query_params.get("to", "/"))
    if request.method == "POST":
        if knows_token(site_of(request), (await field(request, "token")).strip()):
            return signed_in(request, site_of(request), to)
        await asyncio.sleep(1)  # who guesses, guesses slowly
        return page(request, "login.html", 403, wrong=True, to=to)
    return page(request, "login.html", wrong=False, to=to)


async def choose(request: Request) -> Response:
    """Keep the language or the colors that were chosen, and show the page again."""
    response = RedirectResponse(_own_path(await field(request, "to")), 303)
    language, theme = await field(request, "lang"), await field(request, "theme")
    if language in LANGUAGES:
        response.set_cookie(COOKIE, language, max_age=_YEAR, samesite="strict")
    if theme in ("light", "dark", "auto"):
        response.set_cookie(THEME_COOKIE, theme, max_age=_YEAR, samesite="strict")
    return response


def _own_path(to: str) -> str:
    """``to`` if it is a path of ours, else the first page."""
    parts = urlsplit(to)
    return to if to.startswith("/") and not to.startswith(("//", "/\\")) and not parts.netloc else "/"


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [
        Route("/login", login, methods=["GET", "POST"]),
        Route("/choose", choose, methods=["POST"]),
        Route("/", lambda request: RedirectResponse("/runs"), methods=["GET"]),
    ]
