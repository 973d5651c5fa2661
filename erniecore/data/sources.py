"""Data sources with their formats resolved, and what a run reads: the training split, the held-out split, the account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore import registry
from erniecore.config.core import DataSection, Source
from erniecore.config.section import Section
from erniecore.data.order import held_out, index_dtype
from erniecore.data.parsing import RowParser, detect, installed_formats
from erniecore.data.store import SampleStore, Subset
from erniecore.errors import DataError
from erniecore.plugin import Plugin

if TYPE_CHECKING:
    from erniecore.data.ledger import Ledger
    from erniecore.types import Encoder


@dataclass(frozen=True)
class DataSource:
    """One file and how its rows are read. ``file``: its name as the user gave it."""

    file: str
    parser: RowParser
    weight: float = 1.0

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.file)


@dataclass(frozen=True)
class Splits:
    """Everything a run learns from and is measured on.

    Attributes:
        train, held: samples; ``held`` is ``None`` without held-out data.
        report: the content of ``data_report.json``: an account per split.
        summary: a line per split for the console.
    """

    train: SampleStore
    held: SampleStore | None
    report: dict[str, Any]
    summary: tuple[str, ...]


def resolve(
    sources: Sequence[Source], default_format: str = "auto", sections: Mapping[str, Section] | None = None
) -> list[DataSource]:
    """Sources with their parsers.

    Args:
        default_format: for sources that name none; ``auto`` decides by the rows.
        sections: settings of formats by name.

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
        if name == "auto":
            candidates = installed_formats() if candidates is None else candidates
            name = detect(Path(source.path), candidates)
            plugins.setdefault(name, candidates[name])
        plugin = plugins.setdefault(name, plugins.get(name) or registry.load("format", name))
        out.append(DataSource(source.path, RowParser(plugin, given.get(name)), source.weight))
    return out


def load_splits(data: DataSection, sections: Mapping[str, Section], encoder: Encoder, *, seed: int) -> Splits:
    """Read and tokenise what a run needs.

    Raises:
        DataError: a file cannot be used, too many rows are dropped, or nothing is left.
    """
    from erniecore.data.encode import encode

    if not data.train:
        raise DataError("there is no training data", where="data.train", fix="name files with --data FILE")
    train_sources = resolve(data.train, data.format, sections)
    train: SampleStore
    train, ledger = encode(train_sources, encoder, workers=data.workers)
    ledger.check(data.max_drop)
    report, summary = {"train": ledger.as_dict()}, [_line("train", ledger, train)]
    held: SampleStore | None = None
    if data.eval:
        held, eval_ledger = encode(resolve(data.eval, data.format, sections), encoder, workers=data.workers)
        eval_ledger.check(data.max_drop)
        report["eval"] = eval_ledger.as_dict()
        summary.append(_line("eval", eval_ledger, held))
    elif data.eval_fraction:
        train, held = hold_out(train, data.eval_fraction, seed)
        summary.append(f"eval: {len(held) if held else 0} samples held out of train")
    return Splits(train, held, report, tuple(summary))


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


def _line(name: str, ledger: Ledger, store: SampleStore) -> str:
    formats = ", ".join(sorted({count.format for count in ledger.files.values() if count.format}))
    return f"{name}: {ledger.summary()}; {len(store)} samples, {store.num_tokens} tokens ({formats})"
