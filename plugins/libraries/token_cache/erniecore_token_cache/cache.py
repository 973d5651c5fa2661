"""The token cache: tokenized sources on disk, shared by runs and processes and verified whenever they are opened.

An entry is a directory named by its key (``keys.py``) with shards (``shard_files.py``) and, once it is complete,
``entry.json``. Files are written atomically, so an interrupted build continues where it stopped, and a damaged shard is
rebuilt from its rows with a warning. So is one whose images have changed since: their content is compared whenever an entry
is opened. A shard with rows whose images could not be read is made anew each time: they may be there now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erniecore_system.locks import locked

from erniecore.api import DataError
from erniecore.api.data import Encoder, MediaReader, codes, media_reader
from erniecore.api.files import read_json
from erniecore.api.rows import DataSource, ReadLimits, RowStatistics
from erniecore.api.token_cache import (
    LIMITS,
    MAX_ERRORS,
    Cached,
    Chunk,
    Job,
    content_of,
    encode_chunks,
    replace_file,
    source_chunks,
    stamp_of,
    sync_directory,
)
from erniecore_token_cache.keys import entry_key, unreadable
from erniecore_token_cache.shard_dataset import Part, ShardDataset
from erniecore_token_cache.shard_files import Damaged, Shard, ShardWriter, open_shard

ENTRY = "entry.json"
_FORMAT = 1
#: a shard ends with the chunk that reaches one of these
_SHARD_CHUNKS, _SHARD_BYTES = 64, 64 << 20
#: threads that check shards
_CHECKERS = 4


@dataclass
class Entry:
    """One source in the cache.

    Attributes:
        stamp, content: of the data file, as in ``keys.py``. about: what the key stands for.
        media: knows whether images are still the same. shards: those that are whole, by number; complete when ``count`` says so.
        count: of shards; -1: not known yet. made: shards that this process wrote.
    """

    source: DataSource
    path: Path
    stamp: tuple[tuple[int, ...], ...]
    content: dict[str, Any]
    about: dict[str, Any]
    media: MediaReader | None = None
    shards: dict[int, Shard] = field(default_factory=dict)
    count: int = -1
    made: int = 0

    @property
    def complete(self) -> bool:
        """Whether every shard is there."""
        return self.count >= 0 and all(i in self.shards for i in range(self.count))

    @property
    def rows(self) -> int:
        """Rows of the source, dropped ones included."""
        return sum(int(shard.statistics["count"]["rows"]) for shard in self.shards.values())

    @property
    def bytes(self) -> int:
        """Size on disk, in bytes."""
        return sum(shard.bytes for shard in self.shards.values())


class TokenCache:
    """The cache in one directory, which need not exist yet.

    Args:
        note: told what the user should know, such as damaged files.
    """

    def __init__(self, directory: Path, note: Callable[[str], None] = lambda text: None) -> None:
        self.directory, self._note = directory, note
        self._noted: set[str] = set()

    def _damaged(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)

    def encode(
        self,
        sources: Sequence[DataSource],
        encoder: Encoder,
        *,
        workers: int = 0,
        limits: ReadLimits = LIMITS,
        max_errors: int = MAX_ERRORS,
    ) -> Cached:
        """As ``encode.encode``; what is not in the cache is tokenized into it.

        Raises:
            DataError: a file cannot be read or changes meanwhile, or the cache cannot be written.
        """
        statistics = RowStatistics(max_errors)
        job = Job(tuple(sources), encoder, limits, max_errors)
        with ExitStack() as building, writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            entries = [self._entry(source, encoder, limits) for source in sources]
            uses = [locked(path, "use", shared=True) for path in sorted({e.path for e in entries})]
            for entry in entries:
                self._read(entry)
            # in the order of their names, so that two processes never wait for each other
            for path in sorted({e.path for e in entries if not e.complete}):
                building.enter_context(locked(path, "build"))
                for left in path.glob(".*.tmp"):
                    left.unlink(missing_ok=True)
            for entry in entries:
                if not entry.complete:
                    self._read(entry)  # another process may have built it meanwhile
            _build(job, entries, statistics, workers)
        full = RowStatistics(max_errors)
        parts, row = [], 0
        for number, entry in enumerate(entries):
            entry.source.announce(full)
            for i in sorted(entry.shards):
                full.merge([_statistics_of(entry.shards[i].statistics, entry.source.file, max_errors)])
                parts.append(Part(entry.shards[i], number, row))
            row += entry.rows
        full.merge([statistics])
        dataset = ShardDataset(parts, [s.file for s in sources], uses)
        return Cached(dataset, full, tuple(e.content for e in entries), self._report(entries))

    def _report(self, entries: Sequence[Entry]) -> dict[str, Any]:
        by_path = {entry.path: entry for entry in entries}
        return {
            "directory": str(self.directory),
            "bytes": sum(entry.bytes for entry in by_path.values()),
            "entries": [
                {"file": e.source.file, "key": e.path.name, "shards": len(e.shards), "bytes": e.bytes, "made": e.made}
                for e in entries
            ],
        }

    def _entry(self, source: DataSource, encoder: Encoder, limits: ReadLimits) -> Entry:
        try:
            stamp, content = stamp_of(source.path), content_of(source.path)
        except OSError as e:
            raise unreadable(source.path, e) from e
        key, about = entry_key(source, content, encoder, limits)
        return Entry(source, self.directory / key, stamp, content, about, media_reader(encoder))

    def _read(self, entry: Entry) -> None:
        """Find the shards that are there and whole."""
        path, entry.count, entry.shards = entry.path, _listed(entry.path), {}
        wanted = (
            [shard_path(path, i) for i in range(entry.count)] if entry.count >= 0 else sorted(path.glob("*.tokens"))
        )
        with ThreadPoolExecutor(_CHECKERS) as pool:
            for file, found in zip(wanted, pool.map(_checked, wanted), strict=True):
                if isinstance(found, Shard):
                    if not _current(found, entry, pool, self._damaged):
                        continue
                    entry.shards[int(file.stem.rpartition("-")[2])] = found
                else:
                    self._damaged(f"the token cache was damaged: {file}: {found}; the shard is rebuilt")
        if entry.complete:
            os.utime(path / ENTRY)


def shard_path(entry: Path, number: int) -> Path:
    """The file of one shard."""
    return entry / f"shard-{number:05d}.tokens"


def _checked(path: Path) -> Shard | str:
    try:
        return open_shard(path)
    except Damaged as e:
        return str(e)


def _current(shard: Shard, entry: Entry, pool: ThreadPoolExecutor, note: Callable[[str], None]) -> bool:
    """Whether the rows of a shard would become the same samples today, as far as their images go."""
    if codes.BAD_MEDIA in shard.statistics["count"]["reasons"]:
        return False
    found = list(dict.fromkeys(text for _, texts in shard.media_items() for text in texts))
    if entry.media is None or all(pool.map(entry.media.unchanged, found)):
        return entry.media is not None or not found
    note(f"images of {entry.source.file} have changed: {shard.path.name} of the token cache is made anew")
    return False


def _listed(path: Path) -> int:
    """Number of shards that a complete entry has; -1: it is not complete."""
    try:
        facts = read_json(path / ENTRY)
        return int(facts["shards"]) if facts["format"] == _FORMAT else -1
    except (OSError, ValueError, KeyError, TypeError):
        return -1


# ---- building


def _build(job: Job, entries: Sequence[Entry], statistics: RowStatistics, workers: int) -> None:
    """Tokenize what is missing, shard by shard; each is on disk when the next begins. Files that cannot be read to their
    end are in the row statistics's failures, and their entries stay incomplete."""
    counts: dict[int, int] = {}
    writer: _Writer | None = None
    try:
        for group, dataset, part in encode_chunks(job, _missing(job, entries, statistics, counts), workers):
            if writer is None or writer.group != group:
                _finish(writer, entries, counts)
                writer = _Writer(group, entries[group[0]], job.max_errors)
            writer.add(dataset, part)
        _finish(writer, entries, counts)
    except BaseException:
        if writer is not None:
            writer.shards.discard()
        raise
    for number, count in counts.items():
        if count >= 0:
            _complete(entries, number, count)


def _missing(job: Job, entries: Sequence[Entry], statistics: RowStatistics, counts: dict[int, int]) -> Iterator[Chunk]:
    """Chunks of the shards that are not there; the number of shards of each source goes to ``counts``, -1 where the file
    could not be read to its end."""
    paths: set[Path] = set()
    for number, entry in enumerate(entries):
        if entry.complete or entry.path in paths:
            continue
        paths.add(entry.path)
        shard = chunks = size = 0
        failures = len(statistics.failures)
        for chunk in source_chunks(job, number, statistics):
            if shard not in entry.shards:
                yield chunk._replace(group=(number, shard))
            chunks, size = chunks + 1, size + sum(len(raw) for _, raw in chunk.rows if isinstance(raw, bytes))
            if chunks >= _SHARD_CHUNKS or size >= _SHARD_BYTES:
                shard, chunks, size = shard + 1, 0, 0
        counts[number] = shard + (chunks > 0) if len(statistics.failures) == failures else -1


class _Writer:
    """The shard that is being written, and the statistics of its rows."""

    def __init__(self, group: tuple[int, int], entry: Entry, max_errors: int) -> None:
        self.group, self.file = group, entry.source.file
        self.shards = ShardWriter(shard_path(entry.path, group[1]))
        self.statistics = RowStatistics(max_errors)

    def add(self, dataset: Any, part: RowStatistics) -> None:
        self.shards.add(dataset)
        self.statistics.merge([part])


def _finish(writer: _Writer | None, entries: Sequence[Entry], counts: dict[int, int]) -> None:
    if writer is None:
        return
    number, index = writer.group
    if counts.get(number, 0) < 0:
        writer.shards.discard()
        return
    entries[number].shards[index] = writer.shards.finish(_as_json(writer.statistics, writer.file))
    entries[number].made += 1


def _complete(entries: Sequence[Entry], number: int, count: int) -> None:
    """Say that the entry is whole, unless the file is not the one that its key was made of any more."""
    entry = entries[number]
    if stamp_of(entry.source.path) != entry.stamp:
        for shard in entry.shards.values():
            shard.path.unlink(missing_ok=True)
        raise DataError(
            "the data file changed while it was read",
            code=codes.CHANGED_WHILE_READ,
            where=entry.source.file,
            fix="start again when nothing writes to it any more",
        )
    sync_directory(entry.path)
    facts = {"format": _FORMAT, "shards": count, "rows": entry.rows, "bytes": entry.bytes, "about": entry.about}
    replace_file(entry.path / ENTRY, json.dumps(facts, indent=1, ensure_ascii=False).encode())
    for other in entries:
        if other.path == entry.path:
            other.shards, other.count = entry.shards, count


class writing:  # noqa: N801 (a context manager, used like a function)
    """Turns what the operating system refuses into a data error with a remedy."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise DataError(
                f"the token cache cannot be used: {error.strerror or error}",
                code=codes.CACHE_UNWRITABLE,
                where=str(error.filename or self.directory),
                fix="free space there, name another directory with data.cache, or set data.cache=off",
                next=f"df -h {self.directory}",
            ) from error


# ---- row statistics as JSON; files are named as they are called today


def _as_json(statistics: RowStatistics, file: str) -> dict[str, Any]:
    count = vars(statistics.file(file)) | {"reasons": dict(statistics.file(file).reasons)}
    return {"count": count, "errors": statistics.errors, "notes": statistics.notes}


def _statistics_of(found: Any, file: str, max_errors: int) -> RowStatistics:
    statistics = RowStatistics(max_errors)
    count = statistics.file(file)
    for name, value in found["count"].items():
        if name == "reasons":
            count.reasons.update(value)
        else:
            setattr(count, name, value)
    statistics.errors = [{**error, "file": file} for error in found["errors"][:max_errors]]
    statistics.notes = list(found["notes"])
    return statistics
