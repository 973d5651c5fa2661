"""How sizes, counts and times read in messages, and labeled lines of them. Not for files or JSON, which hold plain numbers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

#: the space between a number and its unit, at which no line is broken
_UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]iB|B|[kMGTE]?FLOP|[kMB]|ms|s|min|h)\b)")


#: control characters but tab and line end, and those that turn the direction of text
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
#: the same but colors, which our own lines have
_NO_COLOR = re.compile(rf"(?!\x1b\[[0-9;]*m){CONTROL.pattern}")


def printable(text: str, *, colors: bool = False) -> str:
    """``text`` with control characters as escapes such as ``\\x1b``: names from files must not command a terminal. ``colors``
    stay, if so."""
    return (_NO_COLOR if colors else CONTROL).sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def size_text(num_bytes: float) -> str:
    """Bytes in binary units: ``512 B``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def count_text(number: int) -> str:
    """``21.8 B``, ``360.7 M``, ``123.5 k``."""
    for limit, unit in ((10**9, " B"), (10**6, " M"), (10**3, " k")):
        if number >= limit:
            return f"{number / limit:.1f}{unit}"
    return str(number)


def counted(number: int, noun: str, spec: str = "") -> str:
    """``1 row``, ``2 rows``, ``12,000 entries``; ``spec``: a format of the number."""
    if number != 1:
        noun = re.sub("(?<=[^aeiou])y$", "ie", noun) + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{number:{spec}} {noun}"


def seconds_text(seconds: float) -> str:
    """``230 ms``, ``1.5 s``, ``3.0 min``, ``2.1 h``."""
    for limit, unit in ((3600, "h"), (60, "min"), (1, "s")):
        if seconds >= limit:
            return f"{seconds / limit:.1f} {unit}"
    return f"{seconds * 1000:.0f} ms"


def field_lines(fields: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Labels and their texts in two columns of ``width`` together, longer texts over several lines, which break between the
    parts of a text (``a | b``) where they can. An empty label continues the one above."""
    margin = max((len(label) for label, _ in fields), default=0) + 2
    found = []
    for label, text in fields:
        whole = _UNIT.sub("\N{NO-BREAK SPACE}", text)
        if " | " in whole:
            whole = _glued(whole)
        lines = textwrap.wrap(whole, width - margin, break_long_words=False, break_on_hyphens=False) or [""]
        for start, line in zip((label, *[""] * len(lines)), lines, strict=False):
            found.append(f"{start:<{margin}}{line}".replace("\N{NO-BREAK SPACE}", " "))
    return found


def wrapped(text: str, width: int, indent: int) -> str:
    """``text`` with no line beyond ``width`` where its words allow it; what continues a line is indented."""
    margin = " " * indent
    found: list[str] = []
    for line in _UNIT.sub("\N{NO-BREAK SPACE}", text).split("\n"):
        found += textwrap.wrap(
            line, width, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(found).replace("\N{NO-BREAK SPACE}", " ")


def _glued(text: str) -> str:
    """``intro: a 1 | b 2 = sum`` with the items between the bars each in one piece."""
    first, *middle, tail = text.split(" | ")
    intro, colon, first = first.rpartition(": ")
    last, equals, rest = tail.partition(" = ")
    items = [item.replace(" ", "\N{NO-BREAK SPACE}") for item in (first, *middle, last)]
    return intro + colon + "\N{NO-BREAK SPACE}| ".join(items) + equals + rest
