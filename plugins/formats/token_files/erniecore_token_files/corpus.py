"""Token files as the corpus of a run: opened and checked, split, mixed, accounted for. Nothing of them is read before it is
used but the index and a sample of the ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from erniecore.api import DataError, counted
from erniecore.api.corpus import Corpus, SamplerSettings, Source, codes, file_hash
from erniecore_token_files.names import files_of, prefixes_of
from erniecore_token_files.reading import TokenFile, open_token_file
from erniecore_token_files.sampler import TokenFileDataset, TokenFileSampler
from erniecore_token_files.spans import TokenSpan, split_tail

#: larger files are identified by their size and this many blocks
_WHOLE, _BLOCKS, _BLOCK = 1 << 30, 256, 1 << 20


class TokenFileCorpus(Corpus):
    """One split.

    Args:
        spans: of its files. sources: that named the files; none for a split that was held out of another.
    """

    def __init__(self, spans: Sequence[TokenSpan], sources: Sequence[Source] = ()) -> None:
        self.spans, self.sources = tuple(spans), tuple(sources)

    def load(self, settings: SamplerSettings) -> tuple[TokenFileDataset, TokenFileSampler]:
        """See ``Corpus``. The pairs of a directory share its weight by their size."""
        dataset = TokenFileDataset(self.spans, settings.max_seq_len)
        mix = (
            replace(settings.mix, weights=self._weights(), epochs=self._epochs())
            if self._mixes(settings)
            else settings.mix
        )
        return dataset, TokenFileSampler(dataset, replace(settings, packing="none", mix=mix))

    def contents(self) -> list[dict[str, Any]]:
        return [identify(path) for span in self.spans for path in files_of(span.file.prefix)]

    def describe(self) -> str:
        documents, tokens = sum(s.num_documents for s in self.spans), sum(s.num_tokens for s in self.spans)
        return f"{counted(documents, 'document')}, {counted(tokens, 'token')} (token files)"

    def statistics(self) -> dict[str, Any]:
        """See ``Corpus``: every document is a row, and all are kept."""
        files = {
            str(files_of(s.file.prefix)[0]): {"rows": s.num_documents, "kept": s.num_documents, "tokens": s.num_tokens}
            for s in self.spans
        }
        rows = sum(part["rows"] for part in files.values())
        tokens = sum(part["tokens"] for part in files.values())
        counts = {"rows": rows, "kept": rows, "truncated": 0, "dropped": 0, "tokens": tokens}
        return {**counts, "reasons": {}, "errors": [], "files": files}

    def _mixes(self, settings: SamplerSettings) -> bool:
        """Whether the settings' mix is of these sources; the eval split has none."""
        return bool(settings.mix.weights and self.sources)

    def _weights(self) -> tuple[float, ...]:
        weights: list[float] = []
        for source in self.sources:
            sizes = [files_of(prefix)[0].stat().st_size for prefix in prefixes_of(source.path)]
            weights += [source.weight * size / sum(sizes) if len(sizes) > 1 else source.weight for size in sizes]
        return tuple(weights)

    def _epochs(self) -> tuple[float, ...]:
        return tuple(source.epochs for source in self.sources for _ in prefixes_of(source.path))


def open_corpus(
    sources: Sequence[Source], vocab_size: int, eval_fraction: float
) -> tuple[TokenFileCorpus, TokenFileCorpus | None]:
    """The sources of a split, and the last documents of each file where ``eval_fraction`` is to be held out.

    Raises:
        DataError: a damaged file, ids beyond the model's vocabulary, or nothing to predict.
    """
    kept, evaluation = [], []
    for file in _opened(sources, vocab_size):
        span, tail = split_tail(file, eval_fraction) if eval_fraction else (TokenSpan.whole(file), None)
        kept.append(_long_enough(span))
        if tail is not None and tail.num_tokens > 1:
            evaluation.append(tail)
    return TokenFileCorpus(kept, sources), TokenFileCorpus(evaluation) if evaluation else None


def _opened(sources: Sequence[Source], vocab_size: int) -> list[TokenFile]:
    files = [open_token_file(prefix) for source in sources for prefix in prefixes_of(source.path)]
    for file in files:
        file.check_ids(vocab_size)
    return files


def _long_enough(span: TokenSpan) -> TokenSpan:
    if span.num_tokens < 2:
        raise DataError(
            "there is no token to predict",
            code=codes.NOTHING_LEFT,
            where=str(files_of(span.file.prefix)[0]),
            found=f"{span.num_tokens} token",
            expected="at least 2",
        )
    return span


def identify(path: Path) -> dict[str, Any]:
    """``path``, ``bytes`` and ``sha256`` of a file; above a gibibyte the hash is over the size and blocks of it."""
    size = path.stat().st_size
    if size <= _WHOLE:
        return {"path": str(path), "bytes": size, "sha256": file_hash(path)}
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        for i in range(_BLOCKS):
            stream.seek((size - _BLOCK) * i // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
    return {"path": str(path), "bytes": size, "sha256": digest.hexdigest()}
