"""What a run trains and is evaluated on: samples, their batches by step, and the identity of the files that they came
from. Reading and tokenising belong to ``erniecore.data``; this is the run's view of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from erniecore.checkpoint.files import translated
from erniecore.data.loader import BatchPlan, DataPlan, LoaderSettings
from erniecore.data.splits import Loader, Splits
from erniecore.durable import replace_file
from erniecore.engine.training.corpus_feed import build_corpus_feed, names_token_files
from erniecore.engine.training.guards import check_store
from erniecore.errors import ErnieError
from erniecore.types import Batch

if TYPE_CHECKING:
    from erniecore.engine.preparation.prepare import Prepared
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
        state = {"files": self.files, "fingerprint": self._fingerprint, "samples": self.train.num_samples}
        counted = getattr(self.train, "counted_rows", None)  # plans that need no count have none
        return {**state, "rows": {str(epoch): rows for epoch, rows in counted().items()}} if counted else state


def build_feed(ready: Prepared, tokenizer: Tokenizer) -> Feed:
    """Read, check and tokenise the data; writes ``data_report.json``, also when the data cannot be used.

    Raises:
        DataError: no data, an unreadable file, too many dropped rows, ids beyond the model's vocabulary.
    """
    settings = ready.settings
    if names_token_files(settings.data):
        return build_corpus_feed(ready, tokenizer)
    encoder = ready.host.hook.ernie_build_encoder(
        config=settings.method, tokenizer=tokenizer, max_length=settings.data.max_seq_len
    )
    loader = Loader(settings.data, settings.formats, encoder)
    try:
        splits = loader.load(settings.run.seed)
        for store in (splits.train, splits.held):
            if store is not None:
                check_store(store, int(ready.architecture["vocab_size"]))
        train, held = build_plans(ready, splits, tokenizer.pad_id)
        loader.report["fill_rate"] = train.fill_rate()
    except ErnieError as e:
        loader.report["error"] = {"code": e.code, "message": e.message, "where": e.where, "found": e.found}
        raise
    finally:
        _write_report(ready, loader.report)
    return Feed(
        train,
        held,
        total_steps=settings.train.max_steps or train.total_steps(settings.train.epochs),
        files=splits.contents,
        summary=[
            *splits.summary,
            f"pack: fill {loader.report['fill_rate']:.1%}, {train.steps_in_epoch(0)} steps per epoch",
        ],
        warnings=splits.warnings,
    )


def _write_report(ready: Prepared, report: Mapping[str, Any]) -> None:
    if ready.cluster.rank == 0:
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        with translated(ready.out, "writing data_report.json"):
            replace_file(ready.out / "data_report.json", text.encode())


def build_plans(ready: Prepared, splits: Splits, pad_id: int) -> tuple[DataPlan, DataPlan | None]:
    """This rank's batches of both splits."""
    settings, place = ready.settings, ready.parallel_plan
    rank: dict[str, Any] = {"data_rank": place.data_rank, "data_size": place.data_size}
    training = LoaderSettings.training(settings.data, settings.train)
    known = _known_rows(ready, splits)
    train = DataPlan(splits.train, training, seed=settings.run.seed, pad_id=pad_id, known_rows=known, **rank)
    if splits.held is None:
        return train, None
    evaluation = LoaderSettings.evaluation(settings.data, settings.eval.batch_size or settings.train.batch_size)
    return train, DataPlan(splits.held, evaluation, seed=settings.run.seed, pad_id=pad_id, **rank)


def _known_rows(ready: Prepared, splits: Splits) -> dict[int, int]:
    """Rows per epoch as counted before the checkpoint, if it was made with these samples."""
    checkpoint = ready.resumption.checkpoint
    before = checkpoint.state["data"] if checkpoint is not None else {}
    if before.get("fingerprint") != splits.train.fingerprint():
        return {}
    return {int(epoch): int(rows) for epoch, rows in before.get("rows", {}).items()}
