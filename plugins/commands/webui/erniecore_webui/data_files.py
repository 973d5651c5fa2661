"""Files of rows below the directories of runs and of commands: found by name, looked into as text, taken from a browser.

A run's own files (events, manifests) and a model's are none of them, and nothing that is hidden is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from erniecore.api import UsageError
from erniecore.api.runs import EVENTS_NAME
from erniecore_webui.listing import Listing, scan
from erniecore_webui.model_dirs import ModelDirs

ROWS = (".jsonl", ".ndjson", ".json", ".txt", ".csv", ".tsv", ".parquet", ".arrow")
#: what may stand behind them
PACKED = (".gz", ".zst", ".xz")
#: those whose lines are text
_PLAIN = (".jsonl", ".ndjson", ".json", ".txt", ".csv", ".tsv")
#: levels below a root; most entries that are looked at
_DEPTH, _MOST = 5, 100_000
#: bytes of a file that are read to find a line, and of a line that are shown
_FAR, _LINE = 1 << 28, 4000
#: bytes of an upload, and those of the disk that it leaves free
UPLOAD_BYTES, _RESERVE = 4 << 30, 1 << 30
#: files that tell that a directory is a run, a model, an adapter, a tokenizer or the result of an evaluation
_OTHERS = frozenset(
    {EVENTS_NAME, "config.json", "adapter_config.json", "lora_config.json", "tokenizer_config.json", "evaluation.json"}
)
_SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__"})


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file: its place as a command is given it, bytes, and when it was changed (seconds since 1970)."""

    place: str
    bytes: int
    changed: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text, ``cut`` behind its first :data:`_LINE` bytes."""

    number: int
    text: str
    cut: bool


def is_data(name: str) -> bool:
    """Whether a file with this name may hold rows."""
    for ending in PACKED:
        name = name.removesuffix(ending)
    return name.endswith(ROWS) and not name.startswith(".")


def is_rows(name: str) -> bool:
    """Whether a file with this name holds rows for sure: JSON and text may be anything."""
    return is_data(name) and not name.endswith((".json", ".txt"))


class DataFiles(Listing[DataFile]):
    """Finds files of rows below ``roots``."""

    def __init__(self, roots: Sequence[Path], models: ModelDirs) -> None:
        super().__init__()
        self._roots, self._models = roots, models

    def look(self) -> Iterator[DataFile]:
        """Every file below the roots."""
        left = [_MOST]
        # a root that lies in another one is looked at once
        paths = {path: None for root in self._roots for path in _walk(str(root), _DEPTH, left)}
        return filter(None, map(self._one, paths))

    def describe(self, path: Path) -> DataFile:
        """One file. Raises ``OSError``."""
        facts = path.stat()
        return DataFile(self._models.place(path), facts.st_size, facts.st_mtime)

    def _one(self, path: str) -> DataFile | None:
        with suppress(OSError):
            return self.describe(Path(path))
        return None


def _walk(directory: str, depth: int, left: list[int]) -> Iterator[str]:
    """Files that may hold rows. Links are not followed."""
    folders, others = scan(directory, left, _SKIPPED)
    names = [entry.name for entry in others if entry.is_file(follow_symlinks=False)]
    if not _OTHERS.isdisjoint(names):
        return
    yield from (f"{directory}/{name}" for name in names if is_data(name))
    if depth > 1:
        for folder in folders:
            yield from _walk(folder, depth - 1, left)


def has_lines(path: Path) -> bool:
    """Whether the file is text, so that :func:`lines` shows something."""
    return path.name.endswith(_PLAIN)


def lines(path: Path, first: int, count: int) -> list[Line]:
    """Lines ``first`` to ``first + count - 1``, counted from 1; those that lie within the first 256 MiB. Raises ``OSError``."""
    with path.open("rb") as file:
        return [
            Line(number, raw[:_LINE].decode("utf-8", "replace").rstrip("\r\n"), len(raw) > _LINE)
            for number, raw in islice(enumerate(_lines(file), 1), first - 1, first - 1 + count)
        ]


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Each line, of a long one only its first bytes, so that a file of one line does not fill the memory."""
    read = 0
    while read < _FAR and (raw := file.readline(_LINE + 1)):
        read += len(raw)
        rest = raw
        while rest and not rest.endswith(b"\n") and read < _FAR:
            rest = file.readline(1 << 20)
            read += len(rest)
        yield raw


async def receive(target: Path, parts: AsyncIterator[bytes], size: int) -> None:
    """Write an upload of ``size`` bytes to a file that does not exist yet: all of it, or nothing.

    Raises:
        UsageError: it is too large for the disk or altogether, or another size than was said.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free - _RESERVE
    if size > min(UPLOAD_BYTES, free):
        fix = "copy it below a root; the page finds it there"
        raise UsageError(
            "this file is too large", found=f"{size} bytes", expected=f"at most {min(UPLOAD_BYTES, free)}", fix=fix
        )
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("wb") as file:
            written = 0
            async for chunk in parts:
                written += len(chunk)
                if written > size:
                    break
                file.write(chunk)
        if written != size:
            raise UsageError("the upload did not arrive whole", found=f"{written} bytes", expected=f"{size} bytes")
        os.link(part, target)  # refuses a name that was taken meanwhile
    except FileExistsError as error:
        raise UsageError("this name is taken", where=target.name) from error
    finally:
        part.unlink(missing_ok=True)
