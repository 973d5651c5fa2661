"""Corpora: data that is samples before a run starts, such as token files, and is read while the run goes on.

A corpus plugin recognizes its sources and opens them; everything else of a run is the same as with files of rows, whose
samples are made when the run starts (``splits.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from erniecore_sampler.steps import BatchSampler, SamplerSettings

from erniecore import codes, registry
from erniecore.config.core import Source
from erniecore.data.dataset import Dataset
from erniecore.errors import DataError
from erniecore.host import call_one
from erniecore.plugin import CorpusPlugin
from erniecore.types.samples import Encoder


class Corpus(ABC):
    """One split of a corpus."""

    @abstractmethod
    def load(self, settings: SamplerSettings) -> tuple[Dataset, BatchSampler]:
        """The samples, none longer than ``settings.max_seq_len``, and which of them form which step."""

    @abstractmethod
    def contents(self) -> list[dict[str, Any]]:
        """``path``, ``bytes`` and ``sha256`` of each of its files: a checkpoint records them to notice changed data."""

    @abstractmethod
    def statistics(self) -> dict[str, Any]:
        """Row statistics for ``data_report.json``: at least ``rows``, ``kept``, ``truncated``, ``dropped``, ``errors``."""

    @abstractmethod
    def describe(self) -> str:
        """What it holds, on one line: ``80 documents, 4096 tokens (token files)``."""


def installed_corpora() -> list[CorpusPlugin]:
    """Every installed corpus plugin that can be loaded."""
    return [plugin for plugin in registry.loadable("corpus") if isinstance(plugin, CorpusPlugin)]


def corpus_of(path: str, corpora: Sequence[CorpusPlugin] | None = None) -> CorpusPlugin | None:
    """The corpus plugin that a source belongs to; ``None`` for files with rows. ``corpora``: default the installed ones."""
    for plugin in installed_corpora() if corpora is None else corpora:
        if call_one(plugin, "ernie_match_corpus", path=path):
            return plugin
    return None


def corpus_of_split(key: str, sources: Sequence[Source], encoder: Encoder, method: str) -> CorpusPlugin | None:
    """The one corpus plugin that all sources of a split belong to; ``None`` where they are files with rows.

    Args:
        key: of the settings that name the sources, for errors.

    Raises:
        DataError: the sources are of several kinds, or the method does not train on such a corpus.
    """
    corpora = installed_corpora()
    found = {source.path: corpus_of(source.path, corpora) for source in sources}
    plugin = next((plugin for plugin in found.values() if plugin is not None), None)
    if plugin is None:
        return None
    others = [path for path, other in found.items() if other is not plugin]
    if others:
        raise DataError(
            f"{plugin.title} cannot be mixed with other files in one split",
            code=codes.NOT_FOR_TOKEN_FILES,
            where=key,
            found=", ".join(others),
            fix=plugin.remedy,
        )
    if not set(plugin.records) & set(encoder.accepts):
        raise DataError(
            f"method {method} does not train on {plugin.title}",
            code=codes.NOT_FOR_TOKEN_FILES,
            where=next(iter(found)),
            found=" or ".join(t.__name__ for t in plugin.records),
            expected=" or ".join(t.__name__ for t in encoder.accepts),
            fix="use a method that learns from documents, such as --method pt, or data with rows for this method",
        )
    return plugin


def open_corpus(
    plugin: CorpusPlugin, sources: Sequence[Source], vocab_size: int, eval_fraction: float = 0.0
) -> tuple[Corpus, Corpus | None]:
    """The sources of one split and what is held out of them. Raises ``DataError``."""
    opened: tuple[Corpus, Corpus | None] = call_one(
        plugin, "ernie_open_corpus", sources=sources, vocab_size=vocab_size, eval_fraction=eval_fraction
    )
    return opened
