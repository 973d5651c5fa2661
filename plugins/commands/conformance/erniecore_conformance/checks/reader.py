"""Checks for readers, over a file that the plugin writes (``conformance_file``) and over bytes that are no such file."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from erniecore.api import DataError, RowError
from erniecore.api.data import DecompressorPlugin, RowReaderPlugin, SchemePlugin
from erniecore_conformance.check import Check
from erniecore_conformance.expect import CheckFailed, NotApplicable, ensure, ensure_equal
from erniecore_conformance.subjects import Subject

#: base class -> its hook
JOBS: dict[type, str] = {
    RowReaderPlugin: "ernie_read_rows",
    DecompressorPlugin: "ernie_decompress",
    SchemePlugin: "ernie_fetch_file",
}


def _sample(subject: Subject, folder: str) -> Path:
    """A file of a few rows in ``folder``."""
    write = getattr(subject.plugin, "conformance_file", None)
    if write is None:
        raise NotApplicable("the plugin offers no conformance_file()")
    return Path(write(Path(folder)))


def _read(subject: Subject, path: Path) -> list[Any]:
    """Rows of a file, or what a compressed one holds."""
    if isinstance(subject.plugin, DecompressorPlugin):
        with path.open("rb") as stream:
            return [subject.call("ernie_decompress", stream=stream).read()]
    if not isinstance(subject.plugin, RowReaderPlugin):
        raise NotApplicable("it reads no files itself")
    from erniecore.api.rows import DataFile

    rows = subject.call("ernie_read_rows", file=DataFile(path))
    return [(position, str(row) if isinstance(row, RowError) else row) for position, row in rows]


def check_reader_has_one_job(subject: Subject) -> None:
    """It derives from one of the three base classes of readers, and implements the hook of that one alone."""
    bases = [base for base in JOBS if isinstance(subject.plugin, base)]
    ensure(len(bases) == 1, f"it derives from {len(bases)} of RowReaderPlugin, DecompressorPlugin and SchemePlugin")
    hooks = [hook for hook in JOBS.values() if subject.implements(hook)]
    ensure_equal(hooks, [JOBS[bases[0]]], f"hooks of a {bases[0].__name__}")


def check_reader_gives_rows_in_order(subject: Subject) -> None:
    """Rows are the JSON text of objects, as bytes; positions are ints from 1 that grow."""
    if not isinstance(subject.plugin, RowReaderPlugin):
        raise NotApplicable("it reads no rows")
    with tempfile.TemporaryDirectory() as folder:
        found = _read(subject, _sample(subject, folder))
    ensure(bool(found), "a file of a few rows gives none")
    positions = [position for position, _ in found]
    grows = all(isinstance(p, int) for p in positions) and positions == sorted(set(positions)) and positions[0] >= 1
    ensure(grows, f"positions {positions} do not grow from 1")
    for position, row in found:
        ensure(isinstance(row, bytes), f"row {position} is {row!r}, not bytes")
        ensure(isinstance(json.loads(row), dict), f"row {position} is no JSON object")


def check_reader_reads_identically_twice(subject: Subject) -> None:
    """A second pass over the file gives the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = _sample(subject, folder)
        before = path.read_bytes()
        first, second = _read(subject, path), _read(subject, path)
        ensure(bool(first) and first != [b""], "nothing is read")
        ensure_equal(second, first, "the second pass")
        ensure(path.read_bytes() == before, "the file was changed")


def check_reader_survives_noise(subject: Subject) -> None:
    """Bytes that are no such file give rows, rows that are ``RowError``, or a ``DataError``; damage of a compressed stream is
    ``EOFError`` or one of ``damages``."""
    allowed: tuple[type[BaseException], ...] = (DataError,)
    if isinstance(subject.plugin, DecompressorPlugin):
        allowed = (DataError, EOFError, *subject.plugin.damages)
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"noise.{subject.plugin.name}"
        for noise in (b"\n", b"{", b"\x00" * 64, draw.randbytes(500), "é 日本\n".encode() * 20):
            path.write_bytes(noise)
            try:
                _read(subject, path)
            except allowed:
                continue
            except NotApplicable:
                raise
            except Exception as error:
                raise CheckFailed(f"raised {type(error).__name__}: {error} for {noise[:12]!r}") from error


CHECKS = (
    Check(check_reader_has_one_job),
    Check(check_reader_gives_rows_in_order),
    Check(check_reader_reads_identically_twice),
    Check(check_reader_survives_noise),
)
