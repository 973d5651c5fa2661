"""Every visible text, by key and language. A text that is missing is an error of ours, never an empty place."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: language -> its own name
LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}
COOKIE = "ernie_lang"


@cache
def texts(language: str) -> Mapping[str, str]:
    """Dotted key -> text."""
    path = Path(__file__).parent / "texts" / f"{language}.toml"
    return dict(_flat(tomllib.loads(path.read_text(encoding="utf-8"))))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def text(language: str, key: str, **values: object) -> str:
    """The text of ``key`` with ``{name}`` replaced by values; of ``KEY_one`` where there is one and ``n`` is 1. Raises
    ``KeyError`` for a key that nobody wrote."""
    known = texts(language)
    found = known[key]
    if values.get("n") in (1, "1"):
        found = known.get(f"{key}_one", found)
    return found.format(**values) if values else found


def language_of(request: Request) -> str:
    """What was chosen on the page, else the first of the browser's languages that is here."""
    chosen = request.cookies.get(COOKIE, "")
    if chosen in LANGUAGES:
        return chosen
    for part in request.headers.get("accept-language", "").split(","):
        language = part.split(";")[0].strip().split("-")[0].lower()
        if language in LANGUAGES:
            return language
    return "en"
