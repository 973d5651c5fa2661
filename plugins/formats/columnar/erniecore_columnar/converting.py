"""Rows of one format as rows of another, with row statistics and what was lost: nothing is lost silently.

Every row that is written is read again with the target's own parser and compared with its record. What differs is named
for that row; a record that the target cannot express at all is dropped, which counts like any other bad row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from erniecore_data.reading import parsed, sources_of

from erniecore.api import DataError, Json, Plugin, RowError, Section, UsageError
from erniecore.api.data import Document, Message, Preference, Record, UnpairedPreference
from erniecore.api.rows import (
    RowParser,
    RowStatistics,
    Source,
    codes,
    installed_formats,
    writes_records,
)
from erniecore_columnar.sinks import open_sink


@dataclass(frozen=True)
class Target:
    """Where converted rows go.

    Attributes:
        parser: the target format, which reads each row again.
        out: the file; its ending says how rows are stored.
        force: replace a file that exists.
        lossless: drop rows that would lose something, instead of saying what they lose.
        max_drop: share of dropped rows beyond which nothing is written.
    """

    parser: RowParser
    out: Path
    force: bool = False
    lossless: bool = False
    max_drop: float = 0.0


def convert(
    files: Sequence[Path], target: Target, format: str = "auto", sections: Mapping[str, Section] | None = None
) -> tuple[RowStatistics, bool]:
    """(row statistics, whether the file was written); rows that lose something count as truncated.

    Raises:
        UsageError: the target exists, is one of the files, or has an ending that cannot be written.
        DataError: the rows do not fit into the columns of one table.
    """
    _check_out(target, files)
    statistics = RowStatistics()
    sources, failed = sources_of([Source(path=str(file)) for file in files], format, sections)
    for name, error in failed:
        statistics.fail(name, error)
    with open_sink(target.out) as sink:
        for source in sources:
            for record in parsed(source, statistics):
                row = _converted(target, record, statistics)
                if row is not None:
                    sink.write(row)
        bad = bool(statistics.failures) or statistics.total("dropped") > target.max_drop * statistics.total("rows")
        written = not bad and sink.rows > 0
        if written:
            sink.commit()
    return statistics, written


def writer(name: str, plugin: Plugin) -> Plugin:
    """``plugin``, if it writes. Raises ``UsageError`` that names those that do."""
    if not writes_records(plugin):
        able = [n for n, p in sorted(installed_formats().items()) if writes_records(p)]
        raise UsageError(
            "this format is only read",
            where="--to",
            found=name,
            expected="one of " + ", ".join(able),
            fix="choose another",
        )
    return plugin


def _check_out(target: Target, files: Sequence[Path]) -> None:
    out = target.out
    if any(out.exists() and file.exists() and out.samefile(file) for file in files):
        raise UsageError(
            "a file cannot be converted into itself", where="--out", found=str(out), fix="name another file"
        )
    if out.is_dir():
        inside = out / f"{files[0].name.partition('.')[0]}.jsonl"
        raise UsageError("this is a directory", where="--out", found=str(out), fix=f"name a file in it: {inside}")
    if out.exists() and not target.force:
        raise UsageError("the file exists", where="--out", found=str(out), fix="name another file, or add --force")
    if not out.parent.is_dir():
        raise UsageError(
            "the directory does not exist", where="--out", found=str(out.parent), fix=f"mkdir -p {out.parent}"
        )


def _converted(target: Target, record: Record, statistics: RowStatistics) -> Json | None:
    """The row, if it is to be written; what becomes of it goes to the statistics."""
    parser, origin = target.parser, record.origin
    try:
        row = parser.write(record)
        lost = losses(record, parser(row, origin))
        if lost and target.lossless:
            raise RowError(
                "the row would lose something",
                code=codes.NOT_CONVERTED,
                where="$",
                found=", ".join(lost),
                fix="choose a format that has words for it, or leave out --lossless",
            )
    except DataError as e:
        statistics.drop(origin, e)
        return None
    statistics.keep(origin.file, 1, f"loses {', '.join(lost)}" if lost else "")
    if lost:
        statistics.lose(origin, lost)
    return row


def losses(record: Record, back: Record) -> list[str]:
    """What differs between a record and what became of it, in words; empty: nothing."""
    if type(record) is not type(back):
        kind = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(record).__name__).lower()
        return [f"its kind, {kind}"]
    if isinstance(record, Document):
        return [] if record.text == back.text else ["text"]  # type: ignore[union-attr]
    found = [name for mine, theirs in zip(_talks(record), _talks(back), strict=True) for name in _differ(mine, theirs)]
    if record.tools != back.tools:  # type: ignore[union-attr]
        found.append("tools")
    if isinstance(record, Preference) and isinstance(back, Preference) and record.margin != back.margin:
        found.append("margin")
    if (
        isinstance(record, UnpairedPreference)
        and isinstance(back, UnpairedPreference)
        and record.desirable != back.desirable
    ):
        found.append("rating")
    return list(dict.fromkeys(found))


def _talks(record: Record) -> Iterator[tuple[Message, ...]]:
    if isinstance(record, Preference):
        # nothing of a prompt is learned, whatever it says
        yield tuple(replace(m, learn=True) for m in record.prompt)
        yield record.chosen
        yield record.rejected
    elif not isinstance(record, Document):
        yield record.messages


def _differ(mine: Sequence[Message], theirs: Sequence[Message]) -> Iterator[str]:
    if [m.role for m in mine] != [m.role for m in theirs]:
        yield "turns"
        return
    for a, b in zip(mine, theirs, strict=True):
        if a.content != b.content:
            yield "white space" if a.content.strip() == b.content.strip() else "text"
        if a.reasoning != b.reasoning:
            yield "reasoning"
        if a.tool_calls != b.tool_calls:
            yield "calls"
        if a.learn != b.learn:
            yield "labels"
