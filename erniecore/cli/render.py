"""What commands print: errors in one shape, JSON, tables. The only importer of rich, and only on a terminal.

``NO_COLOR`` and pipes get plain text without control characters. Nothing here decides what is an error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from erniecore_system import streams
from erniecore_system.units import CONTROL, counted, field_lines, printable, wrapped

from erniecore.errors import ConfigError, ErnieError, Preempted

#: How the parts of an error are called on the console.
_LABELS = {"where": "where", "found": "found", "expected": "expect", "fix": "fix", "next": "next"}


def error_text(error: ErnieError) -> str:
    """The error as the console shows it: a headline, then one line per part or per problem."""
    if isinstance(error, ConfigError):
        headline = f"{counted(len(error.problems), 'problem')} in the settings"
    else:
        headline = error.message
    stopped = isinstance(error, Preempted)  # as asked: no error, and the remedy is no repair
    left, right = headline if stopped else f"error {error.code}  {headline}", f"exit {int(error.exit_code)}"
    lines = [f"{left:<{max(1, min(70, streams.columns(sys.stderr) - 10))}}  {right}"]
    if isinstance(error, ConfigError):
        lines += [f"  {problem}" for problem in error.problems]
    fields = error.fields()
    if stopped:
        return "\n".join([*lines, f"  {error.fix}"])
    lines += [f"  {label:<7} {_indented(fields[name])}" for name, label in _LABELS.items() if name in fields]
    return printable("\n".join(lines))


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * 10)


def error_json(error: ErnieError) -> dict[str, Any]:
    """The error as one JSON object; ``problems`` lists what is wrong with the settings."""
    body: dict[str, Any] = dict(error.fields())
    if isinstance(error, ConfigError):
        body["problems"] = [
            {"source": p.source, "line": p.line, "key": p.key, "message": p.message} for p in error.problems
        ]
    return {"event": "error", "error": body, "exit": int(error.exit_code)}


def show_error(error: ErnieError, *, as_json: bool = False) -> None:
    """Print an error: to stderr, or as a JSON line to stdout."""
    if as_json:
        streams.write(sys.stdout, _json_text(error_json(error)))
        return
    headline, *rest = error_text(error).split("\n")
    if sys.stderr.isatty():  # what can be pasted stays on one line
        width = streams.columns(sys.stderr)
        headline = wrapped(headline, width, 10)
        rest = [line if line.startswith("  next ") else wrapped(line, width, 10) for line in rest]
    if use_color(sys.stderr):
        from rich.console import Console
        from rich.text import Text

        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(Text(headline, style="" if isinstance(error, Preempted) else "bold red"))
        for line in rest:
            console.print(Text(line))
        return
    streams.write(sys.stderr, "\n".join([headline, *rest]))


def show_json(value: object, *, indent: int | None = 2) -> None:
    """Print ``value`` as JSON to stdout; ``indent=None`` gives one line."""
    print(_json_text(value, indent), flush=True)


def _json_text(value: object, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def show(*lines: str, indent: int | None = None) -> None:
    """Print plain lines to stdout. ``indent``: on a terminal, a line that is too long goes on behind so many spaces."""
    folds = indent is not None and sys.stdout.isatty()
    for line in lines:
        line = printable(line, colors=True)
        print(wrapped(line, streams.columns(sys.stdout), indent or 0) if folds else line)


def show_fields(fields: Sequence[tuple[str, str]], width: int = 80) -> None:
    """Print labels and their texts to stdout, longer texts over several lines; an empty label continues the one above."""
    show(*field_lines(fields, min(width, streams.columns(sys.stdout))))


def note(message: str) -> None:
    """Print a note to stderr; stdout has only the command's output."""
    streams.write(sys.stderr, printable(message))


def table_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Left-aligned columns, two spaces apart, no trailing blanks; nothing is cut."""
    cells = [[printable(str(c)) for c in row] for row in (headers, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def show_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table to stdout; on a terminal the header is bold, and cells take several lines where the table is too wide."""
    header, *rest = table_text(headers, rows).split("\n")
    width = streams.columns(sys.stdout)
    if sys.stdout.isatty() and max(map(len, (header, *rest))) > width:
        _show_folded(headers, rows, width)
        return
    if use_color(sys.stdout):
        from rich.console import Console
        from rich.text import Text

        Console(highlight=False, soft_wrap=True).print(Text(header, style="bold"))
    else:
        print(header)
    show(*rest)


def _show_folded(headers: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> None:
    """A table that fits: the widest columns are folded, nothing is cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold" if use_color(sys.stdout) else "")
    for name in headers:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console(file=sys.stdout, width=width, highlight=False, no_color=not use_color(sys.stdout)).print(table)


def use_color(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``stream`` is a terminal that wants colors (https://no-color.org)."""
    environ = os.environ if environ is None else environ
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
