"""Token ids of one ``.npy`` file, cut into samples of ``data.max_seq_len``."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from erniecore.api import hookimpl
from erniecore.api.corpus import BatchSampler, Corpus, SamplerSettings, Source, file_hash
from erniecore.api.data import CorpusPlugin, Document, Origin
from erniecore.api.method import Sample


class Samples:
    """A ``Dataset``: the label of each token is the next one."""

    def __init__(self, ids: Any, length: int) -> None:
        self.ids, self.length = ids, length

    def __len__(self) -> int:
        return -(-(len(self.ids) - 1) // self.length)

    def __getitem__(self, index: int) -> Sample:
        ids = self.ids[index * self.length : (index + 1) * self.length + 1].astype(np.int64)
        n = len(ids) - 1
        return Sample(ids[:-1], ids[1:], np.arange(n), np.full(n, n, np.int32), origin=Origin("ids.npy", 1))

    def fingerprint(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.ids).data).hexdigest()


class InOrder(BatchSampler):
    """Every sample once per epoch, in order."""

    def __init__(self, samples: Samples, settings: SamplerSettings) -> None:
        super().__init__(settings)
        self.samples = samples

    def num_sequences(self, epoch: int) -> int:
        return len(self.samples)

    def sequences(self, epoch: int, start: int, stop: int) -> list[list[int]]:
        return [[index] for index in range(start, stop)]

    def fill_rate(self, epoch: int = 0) -> float:
        return (len(self.samples.ids) - 1) / (len(self.samples) * self.samples.length)


class Ids(Corpus):
    """One split of the file."""

    def __init__(self, path: Path, ids: Any) -> None:
        self.path, self.ids = path, ids

    def load(self, settings: SamplerSettings) -> tuple[Samples, InOrder]:
        samples = Samples(self.ids, settings.max_seq_len)
        return samples, InOrder(samples, settings)

    def contents(self) -> list[dict[str, Any]]:
        return [{"path": str(self.path), "bytes": self.path.stat().st_size, "sha256": file_hash(self.path)}]

    def statistics(self) -> dict[str, Any]:
        return {"rows": 1, "kept": 1, "truncated": 0, "dropped": 0, "errors": []}

    def describe(self) -> str:
        return f"{len(self.ids)} token ids"


class NpyPlugin(CorpusPlugin):
    """Recognizes a source by its name and opens it as a training and an eval split."""

    name, summary, title = "npy", "token ids in a .npy file", "a .npy file of token ids"
    records, remedy = (Document,), "train on other files in a run of their own"

    @hookimpl
    def ernie_match_corpus(self, path: str) -> bool:
        return path.endswith(".npy")

    @hookimpl
    def ernie_open_corpus(self, sources: Sequence[Source], eval_fraction: float) -> tuple[Corpus, Corpus | None]:
        path = Path(sources[0].path)
        ids = np.load(path)
        stop = len(ids) - round(len(ids) * eval_fraction)
        return Ids(path, ids[:stop]), Ids(path, ids[stop:]) if stop < len(ids) - 1 else None


plugin = NpyPlugin()
