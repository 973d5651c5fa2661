"""A real run at toy size: the conformance kit's model and method, the core's own loop, sixteen samples."""

from types import SimpleNamespace

import numpy as np
import pytest
from erniecore_conformance.toys.method import ToyMethodPlugin
from erniecore_conformance.toys.model import ToyModelPlugin
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_sampler.steps import PackedBatchSampler

from erniecore.builtin import adamw, cpu, events, single
from erniecore.config.core import CORE_SECTIONS
from erniecore.config.settings import composed
from erniecore.data.dataloader import DataLoader
from erniecore.data.dataset import DatasetBuilder
from erniecore.host import assemble
from erniecore.types.records import Origin
from erniecore.types.samples import IGNORE, Sample


def toy_dataset(count=16, length=9, seed=0):
    """Samples that count upwards; the second half of each is learned."""
    builder = DatasetBuilder(("toy.jsonl",))
    for row in range(count):
        ids = 10 + (np.arange(length + 1) * (1 + row % 3) + row + seed) % 40
        labels = np.where(np.arange(length) < length // 2, IGNORE, ids[1:])
        ends = np.full(length, length, np.int32)
        builder.add(Sample(ids[:-1], labels, np.arange(length), ends, origin=Origin("toy.jsonl", row + 1)), row, 0)
    return builder.finish()


class Maker:
    """Makes the parts of a run in ``out``; every call is a new process's worth of objects."""

    def __init__(self, out):
        self.out = out
        self.plugins = {
            "device": cpu.plugin,
            "parallel": single.plugin,
            "model": ToyModelPlugin(),
            "method": ToyMethodPlugin(),
            "optimizer": adamw.plugin,
            "callback": [events.plugin],
        }

    def settings(self, **sections):
        sections.setdefault("train", {})
        defaults = {"max_steps": 6, "batch_size": 2, "learning_rate": 1e-2, "schedule": "constant"}
        sections["train"] = {**defaults, **sections["train"]}
        sections.setdefault("data", {"packing": "none"})
        sections["run"] = {"out": str(self.out), **sections.get("run", {})}
        made = {name: cls(**sections.get(name, {})) for name, cls in CORE_SECTIONS.items()}
        own = {
            kind: plugin.Config(**sections.get(kind, {})) for kind, plugin in self.plugins.items() if kind != "callback"
        }
        names = {kind: plugin.name for kind, plugin in self.plugins.items() if kind != "callback"}
        return composed(self.plugins)(**made, **own, formats={}, callbacks={}, rewards={}, plugins=names)

    def ready(self, **sections):
        from erniecore.engine.preparation.prepare import prepare

        host = assemble(self.plugins)
        return prepare(
            SimpleNamespace(settings=self.settings(**sections), plugins=self.plugins, host=host), console="none"
        )

    def data(self, ready, dataset=None):
        from erniecore.engine.training.run_data import Place, RunData, evaluation_sampling, training_sampling

        settings = ready.settings
        training = training_sampling(settings.data, settings.train, Place(settings.run.seed, 0, 1))
        two = settings.eval.model_copy(update={"batch_size": 2})
        evaluation = evaluation_sampling(settings.data, two, settings.train, Place(0, 0, 1))
        train, validation = dataset or toy_dataset(), toy_dataset(4, seed=5)
        loaders = [
            DataLoader(samples, PackedBatchSampler(samples, sampling), pad_id=0)
            for samples, sampling in ((train, training), (validation, evaluation))
        ]
        return RunData(*loaders, total_steps=settings.train.max_steps)

    def run(self, dataset=None, **sections):
        """A trainer of a run; continues from a checkpoint in ``out`` if there is one."""
        from erniecore.engine.opening import open_device
        from erniecore.engine.preparation import resume
        from erniecore.engine.process_group import SingleProcess
        from erniecore.engine.stop import StopRequest
        from erniecore.engine.training import build

        context = self.ready(**sections)
        for name in ("logs", "control"):
            (context.out / name).mkdir(parents=True, exist_ok=True)
        mode = context.settings.run.resume
        self.resumption = resume.choose(context.out, mode, context.settings_json, context.rows)
        open_device(context.device, context.cluster, context.kernels)
        stop, data = StopRequest(context.out / "control" / "stop"), self.data(context, dataset)
        checkpoint = self.resumption.checkpoint
        return build.assemble(context, checkpoint, SingleProcess(), ToyTokenizer(), data, stop)

    def finish(self, run):
        """Train to the end, as ``entry`` does."""
        from erniecore.engine.training import build

        run.run(lambda: build.announce(run, self.resumption, run.context.warnings))
        return run


@pytest.fixture
def maker(tmp_path):
    """A maker of runs in ``tmp_path/run``."""
    return Maker(tmp_path / "run")
