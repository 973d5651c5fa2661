"""Which reader a file belongs to: by its ending, the endings of compression around it, and the scheme of its URL."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from erniecore_catalog import install_command, known

from erniecore import codes, registry
from erniecore.errors import DataError, PluginNotFound, nearest
from erniecore.host import call_one
from erniecore.plugin import DecompressorPlugin, Plugin, RowReaderPlugin, SchemePlugin

#: a ``Path`` has one slash left, and names of hubs have none: ``hf:owner/name``
_URL = re.compile(r"([a-z][a-z0-9+.-]*):(?:/{1,2}|(?=[A-Za-z0-9][\w.-]*/))")


@dataclass(frozen=True)
class FileType:
    """What the name of a file says.

    Attributes:
        ending: in small letters, with the dot, without those of compression; empty: none.
        compression: the readers around the file, the outermost first.
        reader: of its rows; ``None``: no installed reader has this ending.
    """

    ending: str
    compression: tuple[DecompressorPlugin, ...]
    reader: RowReaderPlugin | None


class FileTypes:
    """The installed readers, looked up once for many files."""

    def __init__(self) -> None:
        self._readers: dict[str, Plugin] = {plugin.name: plugin for plugin in registry.loadable("reader")}

    def of(self, path: Path) -> FileType:
        """By the endings of the name."""
        stem = path.name
        compression: list[DecompressorPlugin] = []
        while True:
            ending = Path(stem).suffix
            reader = self._readers.get(ending[1:].lower())
            if not isinstance(reader, DecompressorPlugin):
                rows = reader if isinstance(reader, RowReaderPlugin) else None
                return FileType(ending.lower(), tuple(compression), rows)
            compression.append(reader)
            stem = stem[: -len(ending)]

    def endings(self) -> list[str]:
        """Of files with rows, with the dot."""
        return [f".{name}" for name, reader in self._readers.items() if isinstance(reader, RowReaderPlugin)]

    def decompressors(self) -> list[DecompressorPlugin]:
        """All of them, by name."""
        return [reader for reader in self._readers.values() if isinstance(reader, DecompressorPlugin)]

    def row_reader(self, path: Path) -> RowReaderPlugin:
        """Of a file. Raises ``DataError`` where no installed reader has its ending: with the package that brings one."""
        found = self.of(path)
        return found.reader or self._refuse(path, found.ending)

    def _refuse(self, path: Path, ending: str) -> NoReturn:
        from erniecore.data.corpus import corpus_of

        near = nearest(ending, self.endings())
        fix = f"rename it to {near}" if near else "convert it to .jsonl: one JSON object per line"
        home = known.home_of("reader", ending[1:])
        if home:
            fix = install_command(home)
        if (corpus := corpus_of(str(path))) is not None:
            fix = f"{corpus.title} hold no rows; `ernie run` trains on them, with a method such as --method pt"
        around = ", ".join(f".{reader.name}" for reader in self.decompressors())
        raise DataError(
            "data files of this kind cannot be read",
            code=codes.UNKNOWN_FILE_TYPE,
            where=str(path),
            found=ending or "no ending",
            expected=f"one of {', '.join(self.endings())}; also with {around}",
            fix=fix,
        )


def located(source: str) -> Path:
    """Where a data source can be read: a path is itself, a URL is fetched by the reader of its scheme.

    Raises:
        DataError: the file cannot be had. PluginNotFound: no reader has this scheme.
    """
    scheme = _URL.match(source)
    if scheme is None or os.path.exists(source) or (scheme[0][-1] == ":" and not registry.offered("reader", scheme[1])):
        return Path(source)
    url = f"{scheme[1]}://{source[scheme.end() :]}"
    try:
        reader = registry.load("reader", scheme[1])
    except PluginNotFound as e:
        e.where, e.expected = url, "a file, a directory, or a URL for which a reader plugin is installed"
        home = known.home_of("reader", scheme[1])
        e.fix = f"{install_command(home)}, or " * bool(home) + "fetch the file and name it"
        e.fix += f": curl -LO {url}" if scheme[1] in ("http", "https") else ""
        raise
    if not isinstance(reader, SchemePlugin):
        raise DataError("this is not the scheme of a URL", where=url, found=scheme[1], code=codes.MISSING_FILE)
    path: Path = call_one(reader, "ernie_fetch_file", url=url)
    return path
