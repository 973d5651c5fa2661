"""Samples on a screen: text whose loss tokens stand out by color or by brackets, and the answers of a pair side by side."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple, TypeAlias

from erniecore.api.files import printable
from erniecore_data.show import CLOSE, OPEN, Span

_GREEN, _PLAIN = "\x1b[32m", "\x1b[0m"
_BETWEEN = " | "


class _Cell(NamedTuple):
    """A character, and whether it is colored."""

    char: str
    loss: bool


_Line: TypeAlias = "list[_Cell]"


def legend(color: bool) -> str:
    """What the marks mean."""
    mark = f"{_GREEN}green{_PLAIN}" if color else f"{OPEN}…{CLOSE}"
    return f"{mark}: loss tokens, which the model is trained on; the rest is masked (label -100)"


def sample_lines(found: Sequence[Span], width: int, color: bool) -> list[str]:
    """The text of a sample. Where its encoder names parts, each is labeled; the last two stand side by side."""
    parts = {name: list(group) for name, group in groupby(found, key=lambda span: span.part)}
    if len(parts) < 2:
        return _text(found, color)
    lines: list[str] = []
    names = list(parts)
    beside = names[-2:] if len(names) > 2 else []
    for name in names[: len(names) - len(beside)]:
        lines += [f"{name}:", *_text(parts[name], color)]
    if beside:
        room = (width - len(_BETWEEN)) // 2
        columns = [[_plain(name), *_wrapped(_cells(parts[name], color), room)] for name in beside]
        lines += [
            (_padded(left or [], room) + _BETWEEN + _drawn(right or [])).rstrip()
            for left, right in zip_longest(*columns)
        ]
    return lines


def _text(found: Sequence[Span], color: bool) -> list[str]:
    return _drawn(_cells(found, color)).split("\n")


def _cells(found: Sequence[Span], color: bool) -> _Line:
    cells: _Line = []
    for span in found:
        text = printable(span.text).expandtabs(4)
        marked = text if color or not span.loss else f"{OPEN}{text}{CLOSE}"
        cells += [_Cell(char, span.loss and color) for char in marked]
    return cells


def _plain(text: str) -> _Line:
    return [_Cell(char, False) for char in text]


def _drawn(line: _Line) -> str:
    pieces = ((loss, "".join(cell.char for cell in group)) for loss, group in groupby(line, key=lambda c: c.loss))
    return "".join(f"{_GREEN}{text}{_PLAIN}" if loss else text for loss, text in pieces)


def _padded(line: _Line, width: int) -> str:
    return _drawn(line) + " " * (width - sum(_width(cell.char) for cell in line))


def _wrapped(cells: _Line, width: int) -> Iterator[_Line]:
    """Lines of at most ``width`` columns, broken behind spaces where there are any."""
    line: _Line = []
    for cell in cells:
        if cell.char == "\n":
            yield line
            line = []
            continue
        if sum(_width(c.char) for c in line) + _width(cell.char) > width:
            at = max((i + 1 for i, c in enumerate(line) if c.char == " "), default=len(line))
            yield line[:at]
            line = line[at:]
        line.append(cell)
    yield line


def _width(char: str) -> int:
    """Columns of a terminal: ideographs have two, marks on other characters none."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
