"""What a run reads of files with rows: the training split, the eval split, the row statistics. In memory or from the token
cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from erniecore_catalog import install_command
from erniecore_sampler.order import index_dtype, is_eval_row
from erniecore_system.files import cache_home
from erniecore_system.units import counted, size_text

from erniecore.config.core import DataSection, Source
from erniecore.data.dataset import Subset, TokenizedDataset
from erniecore.data.encode import Cached, encode
from erniecore.data.file_types import FileTypes
from erniecore.data.shards import content_of, shards_of
from erniecore.data.sources import DataSource, resolve
from erniecore.errors import DataError
from erniecore.libraries import library
from erniecore.sections import Section

if TYPE_CHECKING:
    from erniecore.data.row_statistics import RowStatistics
    from erniecore.types.samples import Encoder

#: the package that keeps samples on disk; another distribution
TOKEN_CACHE = "erniecore_token_cache"
#: bytes of text from which on ``data.cache: auto`` keeps samples on disk; compressed files count this many times
_LARGE, _PACKED = 64 << 20, 5


@dataclass(frozen=True)
class Split:
    """One split. ``contents``: of its files, each ``path``, ``bytes``, ``sha256``."""

    dataset: TokenizedDataset
    contents: tuple[dict[str, Any], ...]


def cache_directory(setting: str, paths: Sequence[Path], environ: Mapping[str, str] | None = None) -> Path | None:
    """Where ``data.cache`` keeps the samples of these files; ``None``: in memory."""
    if setting == "off":
        return None
    if setting != "auto":
        return Path(setting).expanduser()
    return user_cache(environ) if sum(map(_text_size, paths)) >= _LARGE else None


def user_cache(environ: Mapping[str, str] | None = None) -> Path:
    """The directory of ``data.cache: auto``."""
    return cache_home(environ) / "erniecore" / "tokens"


def _text_size(path: Path) -> int:
    types = FileTypes()
    sizes = ((f.stat().st_size if f.is_file() else 0, types.of(f).compression) for f in shards_of(path))
    return sum(size * _PACKED if compression else size for size, compression in sizes)


class SplitReader:
    """Reads splits one after the other.

    Attributes:
        command: checks the same rows in the same way. known: path -> format, see :func:`resolve`.
        report: the content of ``data_report.json`` so far: row statistics per split; also after an error.
        summary: a line per split for the console. warnings: things the user should know.
    """

    def __init__(
        self,
        data: DataSection,
        sections: Mapping[str, Section],
        encoder: Encoder,
        command: str = "",
        known: Mapping[str, str] | None = None,
    ) -> None:
        self.data, self.sections, self.encoder, self.command, self.known = data, sections, encoder, command, known
        self.report: dict[str, Any] = {}
        self.summary: list[str] = []
        self.warnings: list[str] = []

    def train(self, seed: int) -> tuple[Split, TokenizedDataset | None]:
        """The training split and, with ``data.eval_fraction`` and without ``data.eval``, the eval split taken from it.

        Raises:
            DataError: a file cannot be used, too many rows are dropped, or nothing is left.
        """
        if not self.data.train:
            raise DataError("there is no training data", where="data.train", fix="name files with --data FILE")
        split = self.split("train", self.data.train)
        if self.data.eval or not self.data.eval_fraction:
            return split, None
        train, evaluation = train_eval_split(split.dataset, self.data.eval_fraction, seed)
        self.summary.append(f"eval: {counted(len(evaluation) if evaluation else 0, 'sample')} split from train")
        if evaluation is None:
            self._warn("data.eval_fraction: too few rows for an eval split")
        return Split(train, split.contents), evaluation

    def split(self, name: str, wanted: Sequence[Source]) -> Split:
        """Read and tokenize the sources of one split. Raises ``DataError``."""
        sources = resolve(wanted, self.data.format, self.sections, self.known)
        dataset, statistics, contents = self._encode(name, sources)
        self.report[name] = {**statistics.as_dict(), **self.report.get(name, {})}
        statistics.check(self.data.max_drop, self.command)
        formats = ", ".join(sorted({count.described() for count in statistics.files.values()} - {""}))
        counts = f"{counted(len(dataset), 'sample')}, {counted(dataset.num_tokens, 'token')} ({formats})"
        self.summary.insert(len(self.report) - 1, f"{name}: {statistics.summary()}; {counts}")
        for note in statistics.notes:
            self._warn(note)
        for source, size in zip(sources, dataset.source_sizes(len(sources)), strict=True):
            if not size:
                self._warn(f"{source.file} gives no samples and takes no part in the mix")
        return Split(dataset, contents)

    def _encode(
        self, name: str, sources: Sequence[DataSource]
    ) -> tuple[TokenizedDataset, RowStatistics, tuple[dict[str, Any], ...]]:
        workers = self.data.workers
        directory = self._cache_directory(sources)
        if directory is None:
            dataset, statistics = encode(sources, self.encoder, workers=workers)
            contents = () if statistics.failures else tuple(content_of(source.path) for source in sources)
            return dataset, statistics, contents
        cache: Any = library(f"{TOKEN_CACHE}.cache", f"data.cache={self.data.cache}")
        cached: Cached = cache.TokenCache(directory, self._warn).encode(sources, self.encoder, workers=workers)
        self.report[name] = {"cache": cached.report}
        made = sum(entry["made"] for entry in cached.report["entries"])
        shards = sum(entry["shards"] for entry in cached.report["entries"])
        how = "reused" if not made else "made" if made == shards else f"{made} of {shards} shards made"
        self.summary.append(f"cache: {name} {size_text(cached.report['bytes'])} in {directory} ({how})")
        return cached.dataset, cached.statistics, cached.contents

    def _cache_directory(self, sources: Sequence[DataSource]) -> Path | None:
        """Where the samples of ``sources`` are kept; ``None``: in memory."""
        directory = cache_directory(self.data.cache, [source.path for source in sources])
        if directory is not None and self.data.cache == "auto" and find_spec(TOKEN_CACHE) is None:
            install = install_command("erniecore-token-cache")
            self._warn(f"samples stay in memory, because no token cache is installed: {install}")
            return None
        return directory

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def train_eval_split(
    dataset: TokenizedDataset, fraction: float, seed: int
) -> tuple[TokenizedDataset, TokenizedDataset | None]:
    """Split by rows, a pure function of (seed, row index); all samples of a row go to the same split.

    The eval split is ``None`` if there are too few rows for ``fraction``. Raises ``DataError`` if no row is left for training.
    """
    chosen = is_eval_row(seed, dataset.rows, fraction)
    if not chosen.any():
        return dataset, None
    if chosen.all():
        raise DataError("no row is left for training", where="data.eval_fraction", found=str(fraction), fix="lower it")
    dtype = index_dtype(len(dataset))
    train, rest = (Subset(dataset, np.flatnonzero(side).astype(dtype)) for side in (~chosen, chosen))
    return train, rest
