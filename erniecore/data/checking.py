"""What ``ernie data`` does with files: check them without ever stopping at the first bad one, and read their records.

A run refuses what it cannot use (``splits.Loader``); here every file and row gets its entry in the account.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from erniecore.config.core import Source
from erniecore.config.section import Section
from erniecore.data import codes
from erniecore.data.encode import encode, parse
from erniecore.data.ledger import Ledger
from erniecore.data.parsing import RowParser
from erniecore.data.sources import DataSource, resolve
from erniecore.data.store import TokenStore
from erniecore.errors import DataError, RowError, UsageError
from erniecore.plugin import Plugin
from erniecore.types import Encoder, Json, Origin, Record


class _NoFormat(Plugin):
    """Stands for the format that was not found: every row is dropped for that reason."""

    kind, name, summary = "format", "", ""


class _Refuse(RowParser):
    """A parser that refuses every row with the error that the choice of the format ended with."""

    def __init__(self, error: DataError) -> None:
        self.plugin, self.config, self.error = _NoFormat(), Section(), error

    def __reduce__(self) -> tuple[type[RowParser], tuple[DataError]]:  # type: ignore[override]
        return type(self), (self.error,)

    def __call__(self, row: Json, origin: Origin) -> NoReturn:
        e = self.error
        raise RowError(e.message, code=e.code, where="$", found=e.found, expected=e.expected, fix=e.fix)


def sources_of(
    files: Sequence[Path], format: str, sections: Mapping[str, Section] | None = None
) -> tuple[list[DataSource], list[tuple[str, DataError]]]:
    """Files with their parsers, and the files that cannot be read at all with the reason.

    Raises ``PluginNotFound`` for an unknown format, ``UsageError`` for a file that is named twice."""
    sources: list[DataSource] = []
    failed = []
    for file in files:
        name = str(file)
        if any(s.file == name for s in sources):
            raise UsageError("a file is named twice", found=name)
        try:
            sources += resolve([Source(path=name)], format, sections)
        except DataError as e:
            if e.code in (codes.NO_FORMAT, codes.AMBIGUOUS_FORMAT):
                sources.append(DataSource(name, _Refuse(e)))
            else:
                failed.append((name, e))
    return sources, failed


def check(
    files: Sequence[Path],
    format: str = "auto",
    encoder: Encoder | None = None,
    *,
    sections: Mapping[str, Section] | None = None,
    workers: int = 0,
    max_errors: int = 20,
) -> tuple[TokenStore, Ledger]:
    """The account of every row of every file; with an encoder also the samples."""
    sources, failed = sources_of(files, format, sections)
    ledger = Ledger(max_errors)
    for name, error in failed:
        ledger.fail(name, error)
    store, rest = encode(sources, encoder, workers=workers, max_errors=max_errors)
    _once_per_file(rest)
    ledger.merge([rest])
    return store, ledger


def _once_per_file(ledger: Ledger) -> None:
    """That no format fits is said once per file, not for each of its rows."""
    said: set[str] = set()
    listed = []
    for error in ledger.errors:
        of_file = error["code"] in (codes.NO_FORMAT, codes.AMBIGUOUS_FORMAT)
        if not (of_file and error["file"] in said):
            listed.append(error)
        if of_file:
            said.add(error["file"])
    ledger.errors = listed


def records(
    files: Sequence[Path], format: str, ledger: Ledger, sections: Mapping[str, Section] | None = None
) -> Iterator[tuple[DataSource, Record]]:
    """Every usable record; the others go to ``ledger``."""
    sources, failed = sources_of(files, format, sections)
    for name, error in failed:
        ledger.fail(name, error)
    for source in sources:
        for record in parsed(source, ledger):
            ledger.keep(source.file, 0)
            yield source, record


def parsed(source: DataSource, ledger: Ledger) -> Iterator[Record]:
    """Every usable record of one source, not yet counted as kept; the others go to ``ledger``."""
    ledger.file(source.file).format = source.parser.name
    try:
        for line, raw in source.parser.split(source.path):
            ledger.read(source.file)
            try:
                yield parse(source, raw, Origin(source.file, line))
            except DataError as e:
                ledger.drop(Origin(source.file, line), e)
    except DataError as e:
        ledger.fail(source.file, e)


def format_sections(words: Sequence[str]) -> dict[str, Section]:
    """Sections of formats by name, from words such as ``formats.text.document=file``.

    Raises:
        UsageError, ConfigError, PluginNotFound: a word is no setting of an installed format.
    """
    from erniecore import registry
    from erniecore.config.problems import section_from
    from erniecore.config.sources import from_words

    out = {}
    trees = from_words(words)
    named = trees.pop("formats", {})
    if trees or not isinstance(named, dict):
        found = next(iter(trees), "formats")
        raise UsageError("only settings of formats apply here", found=found, expected="formats.NAME.KEY=VALUE")
    for name, tree in named.items():
        if not isinstance(tree, dict):
            raise UsageError(f"formats.{name} is a section", fix=f"set one of its keys: formats.{name}.KEY=VALUE")
        out[name] = section_from(registry.load("format", name).Config, tree, f"formats.{name}")
    return out
