"""``ernie data convert``: rows of one format as rows of another. Prints what it costs; the work is in ``converting.py``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erniecore.api import Exit, UsageError, counted
from erniecore.api.command import JsonOption, load_settings, show, show_json, split_files

if TYPE_CHECKING:
    from erniecore.api.rows import RowStatistics

_Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE... [formats.NAME.KEY=VALUE]...",
        help="Files as for `ernie data check`. Then settings of formats, of the one that is read or the one that is written.",
    ),
]


def convert(
    files: _Files,
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
        float, typer.Option(min=0, max=1, help="Fraction of rows that may be dropped; above it, nothing is written.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> int:
    """Convert files to another data format. Each row is read again and compared; losses are reported.

    Exit code 4, and no file, when rows cannot be read or written. A format that misses a whole part of a row (tools, a
    second answer) drops the row; one that misses a detail (reasoning, labels) writes it and names the loss.
    """
    from erniecore.api.rows import RowParser, load_format
    from erniecore_columnar.converting import Target, writer
    from erniecore_columnar.converting import convert as convert_files

    named, settings_file, overrides = split_files(files)
    others = [word for word in overrides if not word.startswith("formats.")]
    if others or settings_file:
        found = " ".join(others) or str(settings_file)
        raise UsageError("only settings of formats apply here", found=found, expected="formats.NAME.KEY=VALUE")
    if not named:
        raise UsageError("no data file is named", found=" ".join(overrides), fix="name a file before the settings")
    paths, sections = [Path(name) for name in named], load_settings(None, overrides, complete=False).settings.formats
    plugin = writer(to, load_format(to))
    target = Target(RowParser(plugin, sections.get(to)), out, force, lossless, max_drop)
    statistics, written = convert_files(paths, target, format, sections)
    if as_json:
        report = {**statistics.as_dict(), "losses": statistics.losses, "out": str(out) if written else ""}
        show_json(report)
    else:
        _show(statistics, out if written else None, to)
    return int(Exit.OK if written else Exit.DATA)


def _show(statistics: RowStatistics, out: Path | None, to: str) -> None:
    from erniecore.api.rows import describe

    for name, count in statistics.files.items():
        show(f"{name}: {count.described() or 'no format'}, {counted(count.rows, 'row')}")
    show(*(f"  {describe(error)}" for error in statistics.errors))
    unlisted = statistics.total("dropped") + len(statistics.failures) - len(statistics.errors)
    if unlisted:
        show(f"  and {unlisted} more")
    for loss in statistics.losses:
        show(f"  {loss['place']}: loses {', '.join(loss['loses'])}")
    if statistics.total("truncated") > len(statistics.losses):
        show(f"  and {statistics.total('truncated') - len(statistics.losses)} more that lose something")
    show(statistics.summary().replace(" truncated", " with losses"))
    show(f"{out}: {counted(statistics.total('samples'), 'row')} ({to})" if out else "nothing is written")
