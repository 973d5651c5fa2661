"""What is fixed for a run once it is prepared: its settings, its place among processes, its device, its model, its plan.

Nothing here changes while the run trains; what changes is ``TrainState``. The context goes to the few functions that
assemble the parts of a run, and each of them passes on a section of the settings or one of these attributes, never the
whole. Importing this module is light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.engine.config_hash import config_hash
from erniecore.types.model import Layout, StateAdapter
from erniecore.types.records import Json
from erniecore.types.run import Cluster, Device, ParallelPlan

if TYPE_CHECKING:
    from concurrent.futures import Future

    from erniecore_checkpoint.reader import Checkpoint
    from erniecore_system.contents import Fingerprint

    from erniecore.config.settings import RunSettings
    from erniecore.engine.preparation.head import HeadChoice
    from erniecore.engine.preparation.reference import ReferenceKind
    from erniecore.host import Host
    from erniecore.kernels import Choice
    from erniecore.types.planning import OptimizerState, Plan


@dataclass(frozen=True)
class ModelDescription:
    """The model of a run, by names and shapes.

    Attributes:
        architecture: config.json, with the score head that the run trains, if any.
        state_adapter: names and shapes of its public weights.
        layout: how parallel strategies may shard each parameter, those of the run's adapter included.
        head: whether the run has and trains a score head.
    """

    architecture: Json
    state_adapter: StateAdapter
    layout: Layout
    head: HeadChoice

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.architecture["vocab_size"])


@dataclass(frozen=True, eq=False)
class RunContext:
    """Everything about a run that does not change while it trains.

    Attributes:
        name, out: of the run; ``out`` is its directory. console: how it is shown (``auto``, ``lines``, ``live``, ``json``,
            ``none``).
        settings: frozen and valid. plugins: kind -> plugin, or plugins for kinds that take many. host: calls their hooks.
        cluster: this process among those of the run. num_processes: how many this one has to start; 1: it trains itself.
        device, kernels: where the run computes, and which implementation each operator has. Not open yet.
        model, parallel_plan, plan: description of the model, its division among processes, sizes of the run.
        optimizer_state: of each trained parameter.
        reference: what the method compares the policy with.
        warnings: what is known before anything is opened, for the start of the run.
    """

    name: str
    out: Path
    console: str
    settings: RunSettings
    plugins: Mapping[str, Any]
    host: Host
    cluster: Cluster
    num_processes: int
    device: Device
    kernels: Choice
    model: ModelDescription
    parallel_plan: ParallelPlan
    plan: Plan
    optimizer_state: Sequence[OptimizerState]
    reference: ReferenceKind
    warnings: tuple[str, ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """Kind -> plugin name."""
        return dict(self.settings.plugins)

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files that a run has once."""
        return self.cluster.rank == 0

    @cached_property
    def settings_json(self) -> dict[str, Any]:
        """The settings as JSON."""
        dump: dict[str, Any] = self.settings.model_dump(mode="json")
        return dump

    @cached_property
    def fingerprint(self) -> Future[Fingerprint]:
        """What the run reads, by content; begun when it is first asked for."""
        from erniecore.engine.fingerprint import begin

        return begin(self.settings, self.plugins)

    @property
    def rows(self) -> int:
        """Of a step, on all ranks together."""
        train = self.settings.train
        return int(train.batch_size * self.parallel_plan.micro_batches(train.accumulation))

    @cached_property
    def config_hash(self) -> str:
        """Of the settings that change numbers."""
        return config_hash(self.settings_json)


@dataclass(frozen=True)
class Resumption:
    """The choice, and what the user should read about it.

    Attributes:
        checkpoint: continue from it; ``None``: start anew.
        notes: why this one, which checkpoints are damaged, which settings changed.
    """

    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()

    def noting(self, *notes: str) -> Resumption:
        """The same with further notes."""
        return replace(self, notes=(*self.notes, *notes)) if notes else self
