"""A run as forecasters and the planner see it: everything that its settings say, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from erniecore.types.layouts import LayoutSpace, ParallelLayout
from erniecore.types.model import TensorMap
from erniecore.types.planning import OptimizerState, Plan
from erniecore.types.run import Cluster, Device
from erniecore.types.shape import DecoderShape

if TYPE_CHECKING:
    from erniecore.config.core import DataSection, TrainSection
    from erniecore.sections import OptimizerConfig


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run as its settings describe it; nothing is built, and paddle is not imported.

    Attributes:
        names: kind -> plugin. train, optimizer, data: those sections of the settings.
        device: not open. cluster: the processes of the run, and this one.
        shape: of the decoder; None where the model does not say it.
        layout: of the processes, with the pipeline's split. layouts: what else the strategy can run; None where it does not
            say.
        tensors: of the base model. adapter: name -> shape of what an adapter adds; None without one.
        kernels: operator -> implementation. state: of each trained parameter. reference: each step also runs a reference model.
        generates: a plugin lets the model generate text during training.
    """

    names: Mapping[str, str]
    train: TrainSection
    optimizer: OptimizerConfig
    data: DataSection
    device: Device
    cluster: Cluster
    plan: Plan
    shape: DecoderShape | None
    layout: ParallelLayout
    layouts: LayoutSpace | None
    tensors: Sequence[TensorMap]
    adapter: Mapping[str, Sequence[int]] | None
    kernels: Mapping[str, str]
    state: Sequence[OptimizerState]
    reference: bool = False
    generates: bool = False
