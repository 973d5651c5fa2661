"""What a run trains and is evaluated on: samples, their batches by step, and the identity of the files that they came
from. Reading and tokenising belong to ``erniecore.data``; this is the run's view of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.data.loader import DataPlan
from erniecore.data.store import TokenStore
from erniecore.types import Batch

if TYPE_CHECKING:
    from erniecore.engine.prepare import Prepared
    from erniecore.types import Tokenizer


class Feed:
    """Batches of one rank.

    Attributes:
        train, held: the splits; ``held`` is ``None`` without held-out data.
        total_steps: optimizer steps of the run.
        files: the training files, each with ``path``, ``bytes``, ``sha256``.
        summary: lines for the console. warnings: things the user should know.
    """

    def __init__(
        self,
        train: DataPlan,
        held: DataPlan | None,
        *,
        total_steps: int,
        files: Sequence[dict[str, Any]],
        summary: Sequence[str] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        self.train, self.held, self.total_steps = train, held, total_steps
        self.files, self.summary, self.warnings = list(files), list(summary), list(warnings)
        self._fingerprint = fingerprint(train.store)

    def batches(self, step: int) -> list[Batch]:
        """Micro-batches of optimizer step ``step`` (1-based): a pure function of (seed, step)."""
        return self.train.step(step - 1)

    def held_out(self) -> Iterable[Batch]:
        """Every held-out sample once, in order; nothing without held-out data."""
        return self.held.batches() if self.held is not None else ()

    def state(self) -> dict[str, Any]:
        """What a checkpoint records, to notice changed data. The place in the data is the step itself."""
        return {"files": self.files, "fingerprint": self._fingerprint, "samples": len(self.train.store)}


def fingerprint(store: TokenStore) -> str:
    """sha256 over the samples as tokens: other files, tokenizers or templates give another one."""
    digest = hashlib.sha256()
    for array in (store.starts, store.input_ids, store.labels, store.position_ids, store.end_rows):
        digest.update(b"-" if array is None else np.ascontiguousarray(array).data)
    return digest.hexdigest()


def identify(path: Path) -> dict[str, Any]:
    """``path``, ``bytes`` and ``sha256`` of a file; of a directory: of its files in order of their names."""
    digest, num_bytes = hashlib.sha256(), 0
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
                num_bytes += len(chunk)
    return {"path": str(path), "bytes": num_bytes, "sha256": digest.hexdigest()}


def build_feed(ready: Prepared, tokenizer: Tokenizer) -> Feed:
    raise NotImplementedError
