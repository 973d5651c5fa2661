"""Layouts of processes: how many ranks lie along each parallel axis, and which layouts a strategy can run for one model. A
strategy publishes its :class:`LayoutSpace` by ``ernie_layout_space``; planners search it. No paddle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Degrees of the parallel axes, innermost first: neighboring ranks differ along ``tensor``, stages are furthest apart.

    Attributes:
        tensor, context, sharding, data, pipeline: ranks along each axis.
        expert: ranks that share the experts, of the ``sharding x data`` ones with different samples.
        sharding_stage: what ``sharding`` ranks shard: 1 optimizer state, 2 also gradients, 3 also parameters (ZeRO).
        sequence: sequence parallelism: tensor ranks also shard the residual stream between matrices.
        chunks: virtual pipeline stages of each stage.
        split: layers of each of the ``pipeline x chunks`` chunks where they are listed; empty: as the strategy balances them.
        shares: micro-batches of a step on each of the ``sharding x data`` ranks where they differ.
        order: the axes as ranks are counted along them, from neighbors on; empty: as listed here.
        ranks: the rank at each place, counted in that order; empty: the same number.
        context_attention: how ``context`` ranks attend to whole sequences: ``gather`` keys and values, or pass them around
            in a ``ring``.
        prefetch: in stage 3, of how many layers the parameters are gathered while the layer before them computes.
    """

    tensor: int = 1
    context: int = 1
    sharding: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1
    sharding_stage: int = 1
    sequence: bool = False
    chunks: int = 1
    split: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    order: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    context_attention: str = "gather"
    prefetch: int = 0

    @property
    def size(self) -> int:
        """Number of ranks in total."""
        return self.tensor * self.context * self.sharding * self.data * self.pipeline

    @property
    def data_size(self) -> int:
        """Ranks with different samples."""
        return self.sharding * self.data

    @property
    def degrees(self) -> dict[str, int]:
        """Axis -> ranks along it, ``expert`` included."""
        axes = ("tensor", "context", "sharding", "data", "pipeline", "expert")
        return {axis: int(getattr(self, axis)) for axis in axes}


class LayoutSpace(ABC):
    """The layouts in which a parallel strategy can run one model.

    Attributes:
        places: whether :meth:`overrides` has settings for the ``order`` and ``ranks`` of a layout.
    """

    places: bool = False

    @abstractmethod
    def selected(self, processes: int) -> ParallelLayout:
        """The layout of the settings on so many processes, with the ``split`` that a run uses.

        Raises:
            ConfigError: the strategy cannot run it.
        """

    @abstractmethod
    def layouts(self, processes: int) -> Iterable[ParallelLayout]:
        """Every choice of degrees that uses exactly so many processes and that the model allows; options are the defaults."""

    @abstractmethod
    def variants(self, layout: ParallelLayout) -> Iterable[ParallelLayout]:
        """The same degrees with every allowed choice of ``sharding_stage`` and ``sequence``."""

    @abstractmethod
    def split(self, layout: ParallelLayout, speeds: Sequence[float] = ()) -> tuple[int, ...]:
        """Layers of each chunk of the pipeline, in the order of the model, as a run of ``layout`` splits them; empty without
        a pipeline. ``speeds``: relative speed of each stage; a slower one gets fewer layers. A split for unequal speeds has to
        be listed in the settings, see :meth:`overrides`."""

    @abstractmethod
    def overrides(self, layout: ParallelLayout) -> tuple[str, ...]:
        """The ``section.key=value`` settings that give a run this layout."""
