"""Readers with one thing wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import hookimpl
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.reader import ToyReaderPlugin

if TYPE_CHECKING:
    from erniecore.api.rows import DataFile, RawRow

_passes = count()


def _lines(file: DataFile) -> Iterator[tuple[int, str]]:
    with file.open() as stream:
        for number, line in enumerate(stream, 1):
            yield number, line.decode("utf-8", "replace").rstrip("\n")


class TwoJobs(ToyReaderPlugin):
    """Implements the hook that fetches files too."""

    @hookimpl
    def ernie_fetch_file(self, url: str) -> Path:
        return Path(url)


class CountsFromZero(ToyReaderPlugin):
    """Lines as a programmer counts them."""

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        for number, text in _lines(file):
            yield number - 1, json.dumps({"text": text}).encode()


class BareTexts(ToyReaderPlugin):
    """Rows are strings, not objects."""

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        for number, text in _lines(file):
            yield number, json.dumps(text).encode()


class Stamped(ToyReaderPlugin):
    """Every row says in which pass it was read."""

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        current = next(_passes)
        for number, text in _lines(file):
            yield number, json.dumps({"text": text, "pass": current}).encode()


class Trusting(ToyReaderPlugin):
    """Every byte is thought to be text."""

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        with file.open() as stream:
            for number, line in enumerate(stream, 1):
                yield number, json.dumps({"text": line.decode("utf-8")}).encode()


MUTANTS = (
    mutant("reader_has_one_job", TwoJobs),
    mutant("reader_gives_rows_in_order", CountsFromZero),
    mutant("reader_gives_rows_in_order", BareTexts),
    mutant("reader_reads_identically_twice", Stamped),
    mutant("reader_survives_noise", Trusting),
)
