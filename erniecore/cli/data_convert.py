"""``ernie data convert``: rows of one format as rows of another. Prints what it costs; the work is in ``erniecore.data``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erniecore.cli import render
from erniecore.cli.options import JsonOption
from erniecore.errors import Exit

if TYPE_CHECKING:
    from erniecore.config.section import Section
    from erniecore.data.ledger import Ledger

_Words = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE... [formats.NAME.KEY=VALUE]...",
        help="Files as for `ernie data check`. Then settings of formats, of the one that is read or the one that is written.",
    ),
]


def convert(
    files: _Words,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Format plugin of the rows to write.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="Where to write: .jsonl, .jsonl.gz or .parquet, by its ending."),
    ],
    format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Format plugin that reads; auto: the one that fits.")
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    lossless: Annotated[
        bool, typer.Option("--lossless", help="Drop rows that would lose something, instead of saying what they lose.")
    ] = False,
    max_drop: Annotated[
        float, typer.Option(min=0, max=1, help="Share of rows that may be dropped; beyond it nothing is written.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> int:
    """Write the rows of files in another format. Each row is read again and compared: what it loses is said.

    Exit code 4, and no file, when rows cannot be read or written. A format that misses a whole part of a row (tools, a
    second answer) drops the row; one that misses a detail (reasoning, labels) writes it and names the loss.
    """
    from erniecore import registry
    from erniecore.data.converting import Target, writer
    from erniecore.data.converting import convert as convert_files
    from erniecore.data.parsing import RowParser

    paths, sections = split_files(files)
    plugin = writer(to, registry.load("format", to))
    target = Target(RowParser(plugin, sections.get(to)), out, force, lossless, max_drop)
    ledger, written = convert_files(paths, target, format, sections)
    if as_json:
        report = {**ledger.as_dict(), "losses": ledger.losses, "out": str(out) if written else ""}
        render.show_json(report)
    else:
        _show(ledger, out if written else None, to)
    return int(Exit.OK if written else Exit.DATA)


def split_files(words: Sequence[Path]) -> tuple[list[Path], dict[str, Section]]:
    """The files, and the sections that words such as ``formats.text.document=file`` set.

    Raises ``UsageError`` for settings of anything else, and where no file is named."""
    from erniecore.errors import UsageError

    settings = [str(w) for w in words if "=" in str(w) and str(w).startswith("formats.") and not w.exists()]
    files = [w for w in words if str(w) not in settings]
    if not files:
        raise UsageError("no data file is named", found=" ".join(settings), fix="name a file before the settings")
    if not settings:
        return files, {}
    from erniecore.data.checking import format_sections

    return files, format_sections(settings)


def _show(ledger: Ledger, out: Path | None, to: str) -> None:
    from erniecore.data.ledger import describe

    for name, count in ledger.files.items():
        render.show(f"{name}: {count.format or 'no format'}, {count.rows} rows")
    render.show(*(f"  {describe(error)}" for error in ledger.errors))
    unlisted = ledger.total("dropped") + len(ledger.failures) - len(ledger.errors)
    if unlisted:
        render.show(f"  and {unlisted} more")
    for loss in ledger.losses:
        render.show(f"  {loss['file']}:{loss['line']}: loses {', '.join(loss['loses'])}")
    if ledger.total("truncated") > len(ledger.losses):
        render.show(f"  and {ledger.total('truncated') - len(ledger.losses)} more that lose something")
    render.show(ledger.summary().replace(" truncated", " with losses"))
    render.show(f"{out}: {ledger.total('samples')} rows ({to})" if out else "nothing is written")
