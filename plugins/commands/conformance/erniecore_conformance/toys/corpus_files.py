"""The files of the toy corpus as samples."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from erniecore.api import DataError
from erniecore.api.corpus import BatchSampler, Corpus, SamplerSettings, file_hash
from erniecore.api.method import Origin, Sample


class ToyTokens:
    """Samples of at most ``length`` ids; each token's target is the next one."""

    def __init__(self, ids: Any, length: int, path: Path) -> None:
        self.ids, self.length, self.origin = ids, length, Origin(str(path), 1)

    def __len__(self) -> int:
        return -(-(len(self.ids) - 1) // self.length)

    def __getitem__(self, index: int) -> Sample:
        ids = self.ids[index * self.length : (index + 1) * self.length + 1].astype(np.int64)
        count = len(ids) - 1
        ends = np.full(count, count, np.int32)
        return Sample(ids[:-1], ids[1:], np.arange(count), ends, origin=self.origin)

    def fingerprint(self) -> str:
        """A hash of all ids."""
        return hashlib.sha256(self.ids.tobytes()).hexdigest()


class ToyOrder(BatchSampler):
    """Every sample once per epoch, in order."""

    def __init__(self, tokens: ToyTokens, settings: SamplerSettings) -> None:
        super().__init__(settings)
        self.tokens = tokens

    def num_sequences(self, epoch: int) -> int:
        return len(self.tokens)

    def sequences(self, epoch: int, start: int, stop: int) -> list[list[int]]:
        return [[index] for index in range(start, stop)]

    def fill_rate(self, epoch: int = 0) -> float:
        return (len(self.tokens.ids) - 1) / (len(self.tokens) * self.tokens.length)


class ToyCorpus(Corpus):
    """A split of a token file."""

    def __init__(self, path: Path, ids: Any) -> None:
        self.path, self.ids = path, ids

    def load(self, settings: SamplerSettings) -> tuple[ToyTokens, BatchSampler]:
        tokens = ToyTokens(self.ids, settings.max_seq_len, self.path)
        return tokens, ToyOrder(tokens, settings)

    def contents(self) -> list[dict[str, Any]]:
        return [{"path": str(self.path), "bytes": self.path.stat().st_size, "sha256": file_hash(self.path)}]

    def statistics(self) -> dict[str, Any]:
        return {"rows": 1, "kept": 1, "truncated": 0, "dropped": 0, "errors": []}

    def describe(self) -> str:
        return f"{len(self.ids)} token ids (toy tokens)"


def open_corpus(path: Path, vocab_size: int, eval_fraction: float) -> tuple[ToyCorpus, ToyCorpus | None]:
    """The ids, and the last ``eval_fraction`` of them. Raises ``DataError`` for an id that no token has."""
    ids = np.frombuffer(path.read_bytes(), np.uint8)
    if int(ids.max()) >= vocab_size:
        raise DataError("a token id is outside of the vocabulary", where=str(path), expected=f"below {vocab_size}")
    cut = len(ids) - round(len(ids) * eval_fraction)
    return ToyCorpus(path, ids[:cut]), ToyCorpus(path, ids[cut:]) if cut < len(ids) else None
