"""What a run trains and is evaluated on: samples, their batches by step, and the identity of the files that they came
from. Reading and tokenising belong to ``erniecore.data``; this is the run's view of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.checkpoint.directories import file_hash
from erniecore.checkpoint.files import replace_file
from erniecore.data.loader import BatchPlan, DataPlan, LoaderSettings
from erniecore.data.sources import Splits, load_splits
from erniecore.engine.corpus_feed import build_corpus_feed, names_token_files
from erniecore.engine.guards import check_store
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
        train: BatchPlan,
        held: BatchPlan | None,
        *,
        total_steps: int,
        files: Sequence[dict[str, Any]],
        summary: Sequence[str] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        self.train, self.held, self.total_steps = train, held, total_steps
        self.files, self.summary, self.warnings = list(files), list(summary), list(warnings)
        self._fingerprint = train.fingerprint()

    def batches(self, step: int) -> list[Batch]:
        """Micro-batches of optimizer step ``step`` (1-based): a pure function of (seed, step)."""
        return self.train.step(step - 1)

    def held_out(self) -> Iterable[Batch]:
        """Every held-out sample once, in order; nothing without held-out data."""
        return self.held.batches() if self.held is not None else ()

    def state(self) -> dict[str, Any]:
        """What a checkpoint records, to notice changed data. The place in the data is the step itself."""
        return {"files": self.files, "fingerprint": self._fingerprint, "samples": self.train.num_samples}


def identify(path: Path) -> dict[str, Any]:
    """``path``, ``bytes`` and ``sha256`` of a file."""
    return {"path": str(path), "bytes": path.stat().st_size, "sha256": file_hash(path)}


def build_feed(ready: Prepared, tokenizer: Tokenizer) -> Feed:
    """Read, check and tokenise the data; writes ``data_report.json``.

    Raises:
        DataError: no data, an unreadable file, too many dropped rows, ids beyond the model's vocabulary.
    """
    settings = ready.settings
    if names_token_files(settings.data):
        return build_corpus_feed(ready, tokenizer)
    encoder = ready.host.hook.ernie_build_encoder(
        config=settings.method, tokenizer=tokenizer, max_length=settings.data.max_seq_len
    )
    splits = load_splits(settings.data, settings.formats, encoder, seed=settings.run.seed)
    for store in (splits.train, splits.held):
        if store is not None:
            check_store(store, int(ready.architecture["vocab_size"]))
    train, held = build_plans(ready, splits, tokenizer.pad_id)
    report = {**splits.report, "fill_rate": train.fill_rate()}
    if ready.cluster.rank == 0:
        replace_file(ready.out / "data_report.json", (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())
    warnings = []
    if settings.data.eval_fraction and not settings.data.eval and held is None:
        warnings.append("data.eval_fraction holds out nothing: there are too few rows")
    return Feed(
        train,
        held,
        total_steps=settings.train.max_steps or train.total_steps(settings.train.epochs),
        files=[identify(Path(source.path)) for source in settings.data.train],
        summary=[*splits.summary, f"pack: fill {report['fill_rate']:.1%}, {train.steps_in_epoch(0)} steps per epoch"],
        warnings=warnings,
    )


def build_plans(ready: Prepared, splits: Splits, pad_id: int) -> tuple[DataPlan, DataPlan | None]:
    """This rank's batches of both splits."""
    settings, place = ready.settings, ready.parallel_plan
    rank: dict[str, Any] = {"data_rank": place.data_rank, "data_size": place.data_size}
    training = LoaderSettings.training(settings.data, settings.train)
    train = DataPlan(splits.train, training, seed=settings.run.seed, pad_id=pad_id, **rank)
    if splits.held is None:
        return train, None
    evaluation = LoaderSettings.evaluation(settings.data, settings.eval.batch_size or settings.train.batch_size)
    return train, DataPlan(splits.held, evaluation, seed=settings.run.seed, pad_id=pad_id, **rank)
