"""The data path of a run in its parts, for who times or inspects it: encode the files, then make batches. Trains nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from erniecore_sampler.steps import PackedBatchSampler

from erniecore.data.corpus import corpus_of
from erniecore.data.dataloader import DataLoader
from erniecore.data.encode import build_encoder
from erniecore.data.splits import Split, SplitReader
from erniecore.engine.preparation.forecast import describe_run
from erniecore.engine.training.run_data import Place, training_sampling
from erniecore.engine.training.tokenizer import build_tokenizer
from erniecore.errors import UsageError

if TYPE_CHECKING:
    from erniecore.config.compose import LoadedSettings
    from erniecore.engine.context import RunContext
    from erniecore.types.planned_run import PlannedRun


@dataclass(frozen=True, slots=True)
class DataPath:
    """A prepared run whose data can be read. ``pad_id``: of its tokenizer."""

    context: RunContext
    reader: SplitReader
    pad_id: int

    @property
    def run(self) -> PlannedRun:
        """The run as its settings describe it."""
        return describe_run(self.context)

    def encode(self) -> Split:
        """Read and encode the training files, with ``data.workers`` processes. Raises ``DataError``."""
        return self.reader.train(self.context.settings.run.seed)[0]

    def batches(self, split: Split) -> DataLoader:
        """The batches of the training split."""
        settings, plan = self.context.settings, self.context.parallel_plan
        place = Place(settings.run.seed, plan.data_rank, plan.data_size)
        sampler = PackedBatchSampler(
            split.dataset, training_sampling(settings.data, settings.train, place, plan.shares)
        )
        return DataLoader(split.dataset, sampler, pad_id=self.pad_id)


def open_data_path(loaded: LoadedSettings) -> DataPath:
    """The data path of a run. Raises ``UsageError`` for a corpus, whose samples are there already."""
    from erniecore.engine.preparation.prepare import prepare

    context = prepare(loaded)
    settings = context.settings
    if any(corpus_of(source.path) for source in settings.data.train):
        raise UsageError("a corpus is read as it is; there is nothing to encode", where="data.train")
    tokenizer = build_tokenizer(context.host, settings.model, context.model.vocab_size)
    data = settings.data
    bounds = data.max_seq_len, data.too_long, data.max_patches
    encoder = build_encoder(context.host, settings.method, tokenizer, *bounds)
    return DataPath(context, SplitReader(settings.data, settings.formats, encoder), tokenizer.pad_id)
