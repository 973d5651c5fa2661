"""Data sources with their formats resolved. How they become samples is ``splits.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from erniecore_system.units import counted

from erniecore import registry
from erniecore.config.core import Source
from erniecore.data.file_types import FileTypes, located
from erniecore.data.parsing import RowParser, detect, installed_formats
from erniecore.data.row_statistics import RowStatistics
from erniecore.data.shards import shards_of, unread
from erniecore.errors import DataError, PluginError
from erniecore.plugin import Plugin
from erniecore.sections import Section


@dataclass(frozen=True)
class DataSource:
    """One file and how its rows are read.

    Attributes:
        file: its name as the user gave it.
        fetched: where a file of that URL was fetched to; ``None`` for a path.
    """

    file: str
    parser: RowParser
    weight: float = 1.0
    fetched: Path | None = None

    @property
    def path(self) -> Path:
        """Where it can be read."""
        return Path(self.file) if self.fetched is None else self.fetched

    def announce(self, statistics: RowStatistics) -> None:
        """Say in the statistics how the rows are read, and what of a folder is not."""
        count, types = statistics.file(self.file), FileTypes()
        count.format = self.parser.name
        try:
            readers, others = [types.of(file).reader for file in shards_of(self.path)], unread(self.path)
        except DataError:  # reading will say so
            return
        if any(reader is not None and reader.cuts_documents for reader in readers):
            count.document = self.parser.config.document_unit()
        for why, files in others.items():
            if files:
                names = ", ".join(file.name for file in files[:3]) + (", …" if len(files) > 3 else "")
                statistics.notes.append(f"{self.file}: {counted(len(files), 'file')} {why} not read: {names}")


def resolve(
    sources: Sequence[Source],
    default_format: str = "auto",
    sections: Mapping[str, Section] | None = None,
    known: Mapping[str, str] | None = None,
) -> list[DataSource]:
    """Sources with their parsers.

    Args:
        default_format: for sources that name none; ``auto`` decides by the rows.
        sections: settings of formats by name.
        known: path -> the format that ``auto`` found before. If it still fits the rows, no other is asked: one that has been
            installed since does not matter.

    Raises:
        DataError: a file cannot be read, or ``auto`` finds no single format.
        PluginNotFound: no such format.
    """
    plugins: dict[str, Plugin] = {}
    given = sections or {}
    candidates: dict[str, Plugin] | None = None
    out = []
    for source in sources:
        name = source.format or default_format
        path = located(source.path)
        if name == "auto" and known and _fits(known.get(source.path, ""), path):
            name = known[source.path]
        elif name == "auto":
            candidates = installed_formats() if candidates is None else candidates
            name = detect(path, candidates)
            plugins.setdefault(name, candidates[name])
        plugin = plugins.setdefault(name, plugins.get(name) or registry.load("format", name))
        fetched = None if path == Path(source.path) else path
        out.append(DataSource(source.path, RowParser(plugin, given.get(name)), source.weight, fetched))
    return out


def _fits(name: str, path: Path) -> bool:
    """Whether a format is installed, and rows of the file have its shape."""
    try:
        return bool(name) and detect(path, {name: registry.load("format", name)}) == name
    except (DataError, PluginError):
        return False
