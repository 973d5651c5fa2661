"""Every visible text, by key and language. A text that is missing is an error of ours, never an empty place.

What settings, plugins and error codes say of themselves is English, also that of plugins which somebody else wrote. Their texts
in another language are found by the English one, and where there is none the page shows that and says which language it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: language -> its own name
LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}
COOKIE = "ernie_lang"
_DIRECTORY = Path(__file__).parent / "texts"
#: a type as descriptions of settings have it: ``list of integer``, ``number or nothing ≥ 0 and ≤ 1``
_TYPE = re.compile(r"(list of )?(integer|number|text|mapping|Path)( or nothing)?(?: (\D.*))?")


@cache
def texts(language: str) -> Mapping[str, str]:
    """Dotted key -> text."""
    return dict(_flat(tomllib.loads((_DIRECTORY / f"{language}.toml").read_text(encoding="utf-8"))))


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


class Described(NamedTuple):
    """A text and the language that it is in."""

    text: str
    language: str


@cache
def descriptions(language: str) -> Mapping[str, str]:
    """English text -> the same in this language, of settings, plugins and error codes; empty for English."""
    path = _DIRECTORY / f"descriptions.{language}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def described(language: str, english: str) -> Described:
    """What a setting, a plugin or an error code says of itself, in this language if somebody has translated it."""
    found = descriptions(language).get(english)
    return Described(english, "en") if found is None else Described(found, language)


def type_text(language: str, name: str) -> str:
    """The type of a setting in this language; one that is no plain type stays as it is."""
    match = _TYPE.fullmatch(name)
    if match is None:
        return name
    several, kind, optional, range_ = match.groups()
    shown = text(language, f"new.type.{kind.lower()}")
    shown = text(language, "new.type.list", kind=shown) if several else shown
    shown = text(language, "new.type.optional", kind=shown) if optional else shown
    return f"{shown} {range_.replace(' and ', text(language, 'new.type.and'))}" if range_ else shown


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
