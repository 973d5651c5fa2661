"""A real run at toy size: the conformance kit's model and method, the core's own loop, sixteen samples."""

from types import SimpleNamespace

import numpy as np
import pytest

from erniecore.builtin import cpu, events, single
from erniecore.config.compose import composed
from erniecore.config.core import CORE_SECTIONS
from erniecore.data.loader import DataPlan, LoaderSettings
from erniecore.data.store import StoreBuilder
from erniecore.testing.toys.method import ToyMethodPlugin
from erniecore.testing.toys.model import ToyModelPlugin
from erniecore.testing.toys.tokenizer import ToyTokenizer
from erniecore.types import IGNORE, Origin, Sample


def toy_store(count=16, length=9, seed=0):
    """Samples that count upwards; the second half of each is learned."""
    builder = StoreBuilder(("toy.jsonl",))
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
            "callback": [events.plugin],
        }

    def settings(self, **sections):
        sections.setdefault("train", {})
        defaults = {"max_steps": 6, "batch_size": 2, "learning_rate": 1e-2, "schedule": "constant"}
        sections["train"] = {**defaults, **sections["train"]}
        sections.setdefault("data", {"packing": "none"})
        sections["run"] = {"out": str(self.out), **sections.get("run", {})}
        made = {name: cls(**sections.get(name, {})) for name, cls in CORE_SECTIONS.items()}
        own = {kind: plugin.Config() for kind, plugin in self.plugins.items() if kind != "callback"}
        names = {kind: plugin.name for kind, plugin in self.plugins.items() if kind != "callback"}
        return composed(self.plugins)(**made, **own, formats={}, callbacks={}, scorers={}, plugins=names)

    def ready(self, **sections):
        from erniecore.engine.preparation.prepare import prepare

        loaded = SimpleNamespace(settings=self.settings(**sections), plugins=self.plugins, located=lambda e: e)
        return prepare(loaded, console="none")

    def feed(self, ready, store=None):
        from erniecore.engine.training.feed import Feed

        settings = ready.settings
        loader = LoaderSettings.training(settings.data, settings.train)
        train = DataPlan(store or toy_store(), loader, seed=settings.run.seed, pad_id=0)
        held = DataPlan(toy_store(4, seed=5), LoaderSettings.evaluation(settings.data, 2), seed=0, pad_id=0)
        return Feed(train, held, total_steps=settings.train.max_steps, files=[])

    def run(self, store=None, **sections):
        """An assembled run; continues from a checkpoint in ``out`` if there is one."""
        from erniecore.engine.preparation import prepare
        from erniecore.engine.stop import StopRequest
        from erniecore.engine.training import session

        ready = self.ready(**sections)
        for name in ("logs", "control"):
            (ready.out / name).mkdir(parents=True, exist_ok=True)
        prepare.choose_start(ready)
        prepare.open_device(ready)
        stop = StopRequest(ready.out / "control" / "stop")
        return session.assemble(ready, ToyTokenizer(), self.feed(ready, store), stop)

    def finish(self, run):
        """Train to the end, as ``entry`` does."""
        from erniecore.engine.training import finish, loop, session

        with finish.closing(run):
            session.announce(run)
            loop.train(run)
            finish.complete(run)
        return run


@pytest.fixture
def maker(tmp_path):
    """A maker of runs in ``tmp_path/run``."""
    return Maker(tmp_path / "run")
