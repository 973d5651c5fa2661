"""From a row to a record: one format plugin, called for every row; and which plugin that is where the user said ``auto``.

A file has one format. ``detect`` looks at its first rows and never guesses: none or several fitting formats are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from erniecore import codes, registry
from erniecore.data.opening import LIMITS, RawRow, ReadLimits
from erniecore.data.reader import read_rows, split_rows
from erniecore.errors import DataError, ErnieError, PluginBroken, RowError
from erniecore.host import call_one, implements
from erniecore.plugin import FormatPlugin, Plugin
from erniecore.sections import FormatConfig, Section
from erniecore.types.records import Json, Origin, Record

#: rows that decide about a file's format
DETECT_ROWS = 100


class RowParser:
    """A format plugin with its section, for one row after the other. Picklable, so that workers can have it."""

    def __init__(self, plugin: Plugin, config: Section | None = None) -> None:
        self.plugin = plugin
        made = plugin.Config() if config is None else config
        assert isinstance(made, FormatConfig)  # the registry loads no other format
        self.config = made

    @property
    def name(self) -> str:
        """Name of the format plugin."""
        return self.plugin.name

    def split(self, path: Path, limits: ReadLimits = LIMITS) -> Iterator[RawRow]:
        """Rows of a file, not parsed, cut as the format's section says (``document``: of text files)."""
        return split_rows(path, limits, document=self.config.document_unit())

    def __call__(self, row: Json, origin: Origin) -> Record:
        """Raises ``RowError``; ``PluginBroken`` for anything else that the plugin raises."""
        try:
            record: Record = call_one(self.plugin, "ernie_parse_row", config=self.config, row=row, origin=origin)
        except ErnieError:
            raise
        except Exception as e:
            raise PluginBroken(
                f"format {self.name!r} failed on a row: {type(e).__name__}: {e}", where=origin.place()
            ) from e
        return record

    def write(self, record: Record) -> Json:
        """The way back. Raises ``RowError`` where the format cannot express the record."""
        row: Json = call_one(self.plugin, "ernie_write_record", config=self.config, record=record)
        return row


def writes_records(plugin: Plugin) -> bool:
    """Whether a format can also be written."""
    return implements(plugin, "ernie_write_record")


def load_format(name: str) -> Plugin:
    """An installed format by its name. Raises ``PluginNotFound``."""
    return registry.load("format", name)


def installed_formats() -> dict[str, Plugin]:
    """All formats that can be loaded, but ``auto``."""
    return {plugin.name: plugin for plugin in registry.loadable("format") if plugin.name != "auto"}


def matching(row: Json, formats: Mapping[str, Plugin]) -> list[str]:
    """Names of the formats whose shape a row has."""
    return [name for name, plugin in formats.items() if call_one(plugin, "ernie_match_row", row=row)]


def detect(path: Path, formats: Mapping[str, Plugin], limits: ReadLimits = LIMITS) -> str:
    """Name of the format of a file, from its first rows.

    Raises:
        DataError: the file cannot be read, or its rows fit no format, or several.
    """
    rows = (row for _, row in islice(read_rows(path, limits), DETECT_ROWS))
    return choose((row for row in rows if not isinstance(row, RowError)), formats, str(path))


def choose(rows: Iterable[Json], formats: Mapping[str, Plugin], where: str) -> str:
    """The one format that rows fit; rows that fit none do not count."""
    counts: dict[str, int] = {}
    seen: list[Json] = []
    for row in rows:
        seen.append(row)
        for name in matching(row, formats):
            counts[name] = counts.get(name, 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    if counts:
        raise DataError(
            "several formats fit the rows",
            code=codes.AMBIGUOUS_FORMAT,
            where=where,
            found=", ".join(f"{name} ({count} of {len(seen)})" for name, count in sorted(counts.items())),
            fix=f"name one with --format, such as --format {max(counts, key=lambda n: counts[n])}",
        )
    keys = list(seen[0]) if seen else []
    close = (plugin.advice(seen[0]) for plugin in formats.values() if isinstance(plugin, FormatPlugin) and seen)
    raise DataError(
        "no installed format fits the rows",
        code=codes.NO_FORMAT,
        where=where,
        found=("rows with the fields " + ", ".join(map(repr, keys[:8])) if keys else "rows without fields")
        if seen
        else "no readable row",
        expected="rows of " + (", ".join(sorted(formats)) or "an installed format"),
        fix=min(filter(None, close), key=len, default="name the format with --format to see what each row lacks"),
    )
