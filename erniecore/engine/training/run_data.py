"""What a run trains and is evaluated on: a data loader per split, and the identity of the files that the samples came from.
Reading and tokenizing belong to ``erniecore.data``; this is the run's view of it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore_checkpoint.files import translated
from erniecore_sampler.mixing import Mix
from erniecore_sampler.steps import PackedBatchSampler, SamplerSettings
from erniecore_system.durable import replace_file
from erniecore_system.units import counted

from erniecore.data.corpus import Corpus, corpus_of_split, open_corpus
from erniecore.data.dataloader import DataLoader
from erniecore.data.dataset import TokenizedDataset
from erniecore.data.encode import build_encoder
from erniecore.data.patches import patches_of
from erniecore.data.splits import SplitReader
from erniecore.engine.training.guards import check_dataset
from erniecore.errors import ConfigError, ErnieError
from erniecore.types.samples import Batch, MediaReader

if TYPE_CHECKING:
    from erniecore_checkpoint.reader import Checkpoint

    from erniecore.config.core import DataSection, EvalSection, TrainSection
    from erniecore.engine.context import RunContext
    from erniecore.types.text import Tokenizer


REPORT = "data_report.json"


@dataclass(frozen=True)
class RunData:
    """Batches of one rank.

    Attributes:
        train, eval: the splits; ``eval`` is ``None`` without data to evaluate on.
        total_steps: optimizer steps of the run.
        files: the training files, each with ``path``, ``bytes``, ``sha256``.
        summary: lines for the console. warnings: things the user should know.
    """

    train: DataLoader
    eval: DataLoader | None
    total_steps: int
    files: Sequence[dict[str, Any]] = ()
    summary: Sequence[str] = ()
    warnings: Sequence[str] = ()
    _fingerprint: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # of the samples that training starts with; hashing them once is enough
        object.__setattr__(self, "_fingerprint", self.train.dataset.fingerprint())

    def batches(self, step: int) -> list[Batch]:
        """Micro-batches of optimizer step ``step`` (1-based): a pure function of (seed, step)."""
        return self.train.step(step - 1)

    def eval_batches(self) -> Iterable[Batch]:
        """Every sample of the eval split once, in order; nothing without one."""
        return self.eval.epoch() if self.eval is not None else ()

    def state(self) -> dict[str, Any]:
        """What a checkpoint records, to notice changed data. The place in the data is the step itself."""
        return {
            "files": list(self.files),
            "fingerprint": self._fingerprint,
            "samples": len(self.train.dataset),
            "rows": {str(epoch): count for epoch, count in self.train.sampler.counted_sequences().items()},
        }


class Place(NamedTuple):
    """What chooses this rank's part of every batch: the seed of the run, and the rank among those that see different data."""

    seed: int
    data_rank: int = 0
    data_size: int = 1


def build_run_data(context: RunContext, tokenizer: Tokenizer, checkpoint: Checkpoint | None) -> RunData:
    """Read, check and tokenize the data; writes ``data_report.json``, also when the data cannot be used.

    Args:
        checkpoint: that the run continues from, if any.

    Raises:
        DataError: no data, an unreadable file, too many dropped rows, ids beyond the model's vocabulary.
    """
    settings, plan = context.settings, context.parallel_plan
    data = settings.data
    bounds = data.max_seq_len, data.too_long, data.max_patches
    encoder = build_encoder(context.host, settings.method, tokenizer, *bounds)
    command = shlex.join(["ernie", "data", "check", str(context.out)])  # its resolved.yaml has all settings
    reader = SplitReader(settings.data, settings.formats, encoder, command, _known_formats(context.out))
    place = Place(settings.run.seed, plan.data_rank, plan.data_size)
    recorded = checkpoint.state["data"] if checkpoint is not None else {}
    opening = _Opening(reader, settings.data, place, tokenizer, context.model.vocab_size, recorded)
    method = context.names["method"]
    try:
        train = opening.train(training_sampling(settings.data, settings.train, place, plan.shares), method)
        evaluation = opening.eval(evaluation_sampling(settings.data, settings.eval, settings.train, place), method)
        fill_rate = reader.report["fill_rate"] = train.sampler.fill_rate()
    except ErnieError as e:
        reader.report["error"] = {"code": e.code, "message": e.message, "where": e.where, "found": e.found}
        raise
    finally:
        if context.is_main:
            _write_report(context.out, reader.report)
    return RunData(
        train,
        evaluation,
        total_steps=settings.train.max_steps or train.sampler.total_steps(settings.train.epochs),
        files=opening.files,
        summary=[
            *reader.summary,
            f"{_shapes(train)} {fill_rate:.1%}, {counted(train.sampler.steps_in_epoch(0), 'step')} per epoch",
        ],
        warnings=reader.warnings,
    )


class _Opening:
    """The splits of a run, opened one after the other: rows through ``reader``, corpora through their plugins."""

    def __init__(
        self,
        reader: SplitReader,
        data: DataSection,
        place: Place,
        tokenizer: Tokenizer,
        vocab_size: int,
        recorded: Mapping[str, Any],
    ) -> None:
        self.reader, self.data, self.place, self.vocab_size = reader, data, place, vocab_size
        self.pad_id, template = tokenizer.pad_id, tokenizer.chat_template
        self.media = template if isinstance(template, MediaReader) else None
        self.recorded = recorded  # ``data`` of the checkpoint's state
        self.files: Sequence[dict[str, Any]] = ()
        self._evaluation: TokenizedDataset | Corpus | None = None  # of the training sources, for evaluation

    def train(self, settings: SamplerSettings, method: str) -> DataLoader:
        """The training split; notes what is held out of it."""
        data = self.data
        plugin = corpus_of_split("data.train", data.train, self.reader.encoder, method)
        if plugin is None:
            split, self._evaluation = self.reader.train(self.place.seed)
            self.files = split.contents
            known = _known_sequences(self.recorded, split.dataset.fingerprint())
            return self._rows(split.dataset, settings, known)
        fraction = 0.0 if data.eval else data.eval_fraction
        corpus, self._evaluation = open_corpus(plugin, data.train, self.vocab_size, fraction)
        self.files = corpus.contents()
        if fraction and self._evaluation is None:
            self.reader.warnings.append("data.eval_fraction holds out nothing: there are too few documents")
        return self._corpus("train", corpus, settings)

    def eval(self, settings: SamplerSettings, method: str) -> DataLoader | None:
        """The eval split: ``data.eval``, or what was held out of the training split."""
        evaluation = self._evaluation
        if self.data.eval:
            plugin = corpus_of_split("data.eval", self.data.eval, self.reader.encoder, method)
            if plugin is None:
                evaluation = self.reader.split("eval", self.data.eval).dataset
            else:
                evaluation, _ = open_corpus(plugin, self.data.eval, self.vocab_size)
        if evaluation is None:
            return None
        if isinstance(evaluation, Corpus):
            return self._corpus("eval", evaluation, settings)
        return self._rows(evaluation, settings, {})

    def _rows(self, dataset: TokenizedDataset, settings: SamplerSettings, known: Mapping[int, int]) -> DataLoader:
        check_dataset(dataset, self.vocab_size)
        patches = patches_of(dataset, self.media)
        if patches is not None and settings.static_shapes:
            raise ConfigError.at("data.static_shapes", "rows with images have shapes of their own; set it to false")
        sampler = PackedBatchSampler(dataset, settings, known_sequences=known, patches=patches)
        return DataLoader(dataset, sampler, pad_id=self.pad_id, media=self.media)

    def _corpus(self, name: str, corpus: Corpus, settings: SamplerSettings) -> DataLoader:
        dataset, sampler = corpus.load(settings)
        length = f" of {settings.max_seq_len}" if name == "train" else ""
        self.reader.report[name] = {**corpus.statistics(), "samples": len(dataset)}
        self.reader.summary.append(f"{name}: {corpus.describe()}; {counted(len(dataset), 'sample')}{length}")
        return DataLoader(dataset, sampler, pad_id=self.pad_id)


def _shapes(train: DataLoader) -> str:
    """What the share of positions with tokens is a share of."""
    if train.shape is None:
        return "packing efficiency"
    sequences, length = train.shape
    return f"batches of {sequences} x {length} positions, tokens in"


def training_sampling(
    data: DataSection, train: TrainSection, place: Place, micro_batches: tuple[int, ...] = ()
) -> SamplerSettings:
    """How this rank's training samples become steps; ``micro_batches``: by rank, where they differ."""
    mix = Mix(
        kind=data.mix,
        weights=tuple(source.weight for source in data.train),
        epochs=tuple(source.epochs for source in data.train),
        epoch_samples=data.epoch_samples,
    )
    steps: dict[str, Any] = {
        "batch_size": train.batch_size,
        "accumulation": train.accumulation,
        "shares": micro_batches,
    }
    return SamplerSettings(**_packing(data), **steps, **place._asdict(), shuffle=data.shuffle, mix=mix)


def evaluation_sampling(
    data: DataSection, evaluation: EvalSection, train: TrainSection, place: Place
) -> SamplerSettings:
    """How this rank's samples of the eval split become batches: every sample once, in order."""
    size = evaluation.batch_size or train.batch_size
    return SamplerSettings(**_packing(data), **place._asdict(), shuffle=False, batch_size=size)


def _packing(data: DataSection) -> dict[str, Any]:
    bounds = {"max_seq_len": data.max_seq_len, "max_patches": data.max_patches}
    how = {"packing": data.packing, "packing_buffer": data.packing_buffer, "static_shapes": data.static_shapes}
    return {**how, **bounds}


def _known_formats(out: Path) -> dict[str, str]:
    """Path -> format of the files that an earlier start of this run has read, as its ``data_report.json`` says."""
    try:
        report = json.loads((out / REPORT).read_bytes())
        files = {
            path: count for name in ("train", "eval") for path, count in report.get(name, {}).get("files", {}).items()
        }
        return {path: str(count["format"]) for path, count in files.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write_report(out: Path, report: Mapping[str, Any]) -> None:
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    with translated(out, "writing data_report.json"):
        replace_file(out / REPORT, text.encode())


def _known_sequences(recorded: Mapping[str, Any], fingerprint: str) -> dict[int, int]:
    """Sequences per epoch as recorded before the checkpoint, if it was made with these samples."""
    if recorded.get("fingerprint") != fingerprint:
        return {}
    return {int(epoch): int(count) for epoch, count in recorded.get("rows", {}).items()}
