"""The records of files that may be bad: every file and row is read and counted, and none ends the reading.

For commands on data files, also those of other distributions. A run refuses what it cannot use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from erniecore.api import DataError, Json, RowError, Section, UsageError
from erniecore.api.data import FormatConfig, FormatPlugin, Origin, Record
from erniecore.api.rows import DataSource, RowParser, RowStatistics, Source, codes, parse, resolve


class _NoFormat(FormatPlugin):
    """Stands for the format that was not found: every row is dropped for that reason."""

    name, summary = "", ""


class _Refuse(RowParser):
    """A parser that refuses every row with the error that the choice of the format ended with."""

    def __init__(self, error: DataError) -> None:
        self.plugin, self.config, self.error = _NoFormat(), FormatConfig(), error

    def __reduce__(self) -> tuple[type[RowParser], tuple[DataError]]:
        return type(self), (self.error,)

    def __call__(self, row: Json, origin: Origin) -> NoReturn:
        e = self.error
        raise RowError(e.message, code=e.code, where="$", found=e.found, expected=e.expected, fix=e.fix)


def sources_of(
    files: Sequence[Source], format: str, sections: Mapping[str, Section] | None = None
) -> tuple[list[DataSource], list[tuple[str, DataError]]]:
    """Files with their parsers, and the files that cannot be read at all with the reason.

    Raises ``PluginNotFound`` for an unknown format, ``UsageError`` for a file that is named twice."""
    sources: list[DataSource] = []
    failed = []
    for file in files:
        name = file.path
        if any(s.file == name for s in sources):
            raise UsageError("a file is named twice", found=name)
        try:
            sources += resolve([file], format, sections)
        except DataError as e:
            if e.code in (codes.NO_FORMAT, codes.AMBIGUOUS_FORMAT):
                sources.append(DataSource(name, _Refuse(e)))
            else:
                failed.append((name, e))
    return sources, failed


def records(
    files: Sequence[Source], format: str, statistics: RowStatistics, sections: Mapping[str, Section] | None = None
) -> Iterator[tuple[DataSource, Record]]:
    """Every usable record; the others go to ``statistics``."""
    sources, failed = sources_of(files, format, sections)
    for name, error in failed:
        statistics.fail(name, error)
    for source in sources:
        for record in parsed(source, statistics):
            statistics.keep(source.file, 0)
            yield source, record


def read_records(files: Sequence[Path], format: str = "auto") -> tuple[list[Record], list[dict[str, Any]]]:
    """The records of the files in order, each with its origin, and what is wrong with the other rows
    (``file``, ``line``, ``message`` …)."""
    statistics = RowStatistics()
    sources = [Source(path=str(file)) for file in files]
    found = [record for _, record in records(sources, format, statistics)]
    return found, [dict(error) for error in statistics.errors]


def parsed(source: DataSource, statistics: RowStatistics) -> Iterator[Record]:
    """Every usable record of one source, not yet counted as kept; the others go to ``statistics``."""
    source.announce(statistics)
    try:
        for position, raw in source.parser.split(source.path):
            statistics.read(source.file)
            origin = Origin(source.file, position)
            try:
                yield parse(source, raw, origin)
            except DataError as e:
                statistics.drop(origin, e)
    except DataError as e:
        statistics.fail(source.file, e)
