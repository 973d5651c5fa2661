"""What a run reads: the training split, the held-out split, the account of all rows. In memory or from the token cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.config.core import DataSection, Source
from erniecore.config.section import Section
from erniecore.data.opening_folders import shards_of
from erniecore.data.order import held_out, index_dtype
from erniecore.data.sources import DataSource, resolve
from erniecore.data.store import SampleStore, Subset
from erniecore.errors import DataError
from erniecore.units import size_text

if TYPE_CHECKING:
    from erniecore.data.ledger import Ledger
    from erniecore.types import Encoder

#: bytes of text from which on ``data.cache: auto`` keeps samples on disk; gzip counts this many times
_LARGE, _GZIP = 64 << 20, 5


@dataclass(frozen=True)
class Splits:
    """Everything a run learns from and is measured on.

    Attributes:
        train, held: samples; ``held`` is ``None`` without held-out data.
        contents: of the training files: ``path``, ``bytes``, ``sha256``.
        summary: a line per split for the console. warnings: things the user should know.
    """

    train: SampleStore
    held: SampleStore | None
    contents: tuple[dict[str, Any], ...]
    summary: tuple[str, ...]
    warnings: tuple[str, ...]


def cache_directory(setting: str, paths: Sequence[Path], environ: Mapping[str, str] | None = None) -> Path | None:
    """Where ``data.cache`` keeps the samples of these files; ``None``: in memory."""
    if setting == "off":
        return None
    if setting != "auto":
        return Path(setting).expanduser()
    return user_cache(environ) if sum(map(_text_size, paths)) >= _LARGE else None


def user_cache(environ: Mapping[str, str] | None = None) -> Path:
    """The directory of ``data.cache: auto``."""
    home = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "erniecore" / "tokens"


def _text_size(path: Path) -> int:
    sizes = ((f.stat().st_size if f.is_file() else 0, f.name.endswith(".gz")) for f in shards_of(path))
    return sum(size * _GZIP if packed else size for size, packed in sizes)


class Loader:
    """Reads splits one after the other.

    Attributes:
        report: the content of ``data_report.json`` so far: an account per split; also after an error.
        summary, warnings: as of ``Splits``.
    """

    def __init__(self, data: DataSection, sections: Mapping[str, Section], encoder: Encoder) -> None:
        self.data, self.sections, self.encoder = data, sections, encoder
        self.report: dict[str, Any] = {}
        self.summary: list[str] = []
        self.warnings: list[str] = []

    def load(self, seed: int) -> Splits:
        """Read and tokenise what a run needs.

        Raises:
            DataError: a file cannot be used, too many rows are dropped, or nothing is left.
        """
        data = self.data
        if not data.train:
            raise DataError("there is no training data", where="data.train", fix="name files with --data FILE")
        train, contents = self.split("train", data.train)
        held: SampleStore | None = None
        if data.eval:
            held, _ = self.split("eval", data.eval)
        elif data.eval_fraction:
            train, held = hold_out(train, data.eval_fraction, seed)
            self.summary.append(f"eval: {len(held) if held else 0} samples held out of train")
            if held is None:
                self._warn("data.eval_fraction holds out nothing: there are too few rows")
        return Splits(train, held, contents, tuple(self.summary), tuple(self.warnings))

    def split(self, name: str, wanted: Sequence[Source]) -> tuple[SampleStore, tuple[dict[str, Any], ...]]:
        """The samples of one split, and the contents of its files. Raises ``DataError``."""
        sources = resolve(wanted, self.data.format, self.sections)
        store, ledger, contents = self._encode(name, sources)
        self.report[name] = {**ledger.as_dict(), **self.report.get(name, {})}
        ledger.check(self.data.max_drop)
        formats = ", ".join(sorted({count.format for count in ledger.files.values() if count.format}))
        counts = f"{len(store)} samples, {store.num_tokens} tokens ({formats})"
        self.summary.insert(len(self.report) - 1, f"{name}: {ledger.summary()}; {counts}")
        for source, size in zip(sources, store.source_sizes(len(sources)), strict=True):
            if not size:
                self._warn(f"{source.file} gives no samples and takes no part in the mix")
        return store, contents

    def _encode(
        self, name: str, sources: Sequence[DataSource]
    ) -> tuple[SampleStore, Ledger, tuple[dict[str, Any], ...]]:
        from erniecore.data.cache_keys import content_of
        from erniecore.data.encode import encode

        workers = self.data.workers
        directory = cache_directory(self.data.cache, [source.path for source in sources])
        if directory is None:
            store, ledger = encode(sources, self.encoder, workers=workers)
            contents = () if ledger.failures else tuple(content_of(source.path) for source in sources)
            return store, ledger, contents
        from erniecore.data.cache import TokenCache

        cached = TokenCache(directory, self._warn).encode(sources, self.encoder, workers=workers)
        self.report[name] = {"cache": cached.report}
        made = sum(entry["made"] for entry in cached.report["entries"])
        shards = sum(entry["shards"] for entry in cached.report["entries"])
        how = "reused" if not made else "made" if made == shards else f"{made} of {shards} shards made"
        self.summary.append(f"cache: {name} {size_text(cached.report['bytes'])} in {directory} ({how})")
        return cached.store, cached.ledger, cached.contents

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def hold_out(store: SampleStore, fraction: float, seed: int) -> tuple[SampleStore, SampleStore | None]:
    """Split by rows, a pure function of (seed, row index): all samples of a row go to the same side.

    Neither side is ever empty of rows that the other could spare: with too few rows for ``fraction``, nothing is held
    out (``None``). Raises ``DataError`` when everything would be.
    """
    chosen = held_out(seed, store.rows, fraction)
    if not chosen.any():
        return store, None
    if chosen.all():
        raise DataError("every row would be held out", where="data.eval_fraction", found=str(fraction), fix="lower it")
    dtype = index_dtype(len(store))
    train, held = (Subset(store, np.flatnonzero(part).astype(dtype)) for part in (~chosen, chosen))
    return train, held
