"""Templates and what every template has: ``t`` for texts, formats of numbers, the table of pages, the CSRF secret."""

from __future__ import annotations

import math
import time
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jinja2
from erniecore_runs.latest import duration
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from erniecore.api.runs import size_text
from erniecore_webui.navigation import in_navigation
from erniecore_webui.security import secret
from erniecore_webui.site import Site
from erniecore_webui.texts import LANGUAGES, described, language_of, text, type_text

THEME_COOKIE = "ernie_theme"


@cache
def _templates() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(size=_size, number=number_text, duration=_duration, when=_when, sentence=sentence)
    return env


def site_of(request: Request) -> Site:
    """What the pages share."""
    site: Site = request.app.state.site
    return site


def page(request: Request, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
    """A template, which may use: ``t(key, …)``, ``described(english)``, ``type_text(type)``, ``lang``, ``theme``, ``csrf``,
    ``pages`` (of the navigation), ``here`` (the path) and ``partial`` (whether htmx asked for a part of the page)."""
    values.setdefault("current", "")
    # names of files and what clients send may hold halves of surrogate pairs, which nothing else of a page should suffer from
    html = fragment(request, template, **values).encode(errors="replace")
    return HTMLResponse(html, status, {"vary": "HX-Request, Accept-Language, Cookie"})


def fragment(request: Request, template: str, /, **values: Any) -> str:
    """The HTML of a template, which may use what :func:`page` says."""
    language = language_of(request)
    theme = request.cookies.get(THEME_COOKIE, "")
    return _templates().get_template(template).render(
        t=partial(text, language), described=partial(described, language), type_text=partial(type_text, language), lang=language,
        languages=LANGUAGES,
        theme=theme if theme in ("light", "dark") else "auto", csrf=secret(site_of(request).token, "csrf"),
        pages=in_navigation(), here=request.url.path, partial="hx-request" in request.headers, **values,
    )  # fmt: skip


def message(request: Request, status: int, detail: str) -> Response:
    """An error as a page, or as a notice where htmx asked."""
    return page(request, "notice.html" if "hx-request" in request.headers else "error.html", status, status=status,
                detail=detail)  # fmt: skip


async def form(request: Request) -> dict[str, list[str]]:
    """The fields of a form: name -> values."""
    body = await request.body()
    return parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=5000)


async def field(request: Request, name: str) -> str:
    """The first value of a field; ``""`` without one."""
    return (await form(request)).get(name, [""])[0]


def number_text(value: object, digits: int = 4) -> str:
    """A number with so many digits that count; an en dash for none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def _duration(seconds: object) -> str:
    return duration(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else "–"


def _size(value: object) -> str:
    return size_text(value) if isinstance(value, int | float) and not isinstance(value, bool) else "–"


def sentence(text: str) -> Markup:
    """A description of a plugin or a setting as a sentence of the page: `` `code` `` as code, a capital at its beginning."""
    text = text[:1].upper() + text[1:]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd else escape(part)
        for part, odd in zip(text.split("`"), cycle((False, True)), strict=False)
    )


def _when(seconds: object) -> str:
    """A moment of this machine's clock."""
    if not isinstance(seconds, int | float):
        return "–"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
