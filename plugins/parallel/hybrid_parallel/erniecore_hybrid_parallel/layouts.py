"""The layouts that ``hybrid`` can run of one model, for planners: enumerated by the checks that a run makes, with the split
that a run uses. No paddle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import isqrt

from erniecore.api import ConfigError
from erniecore.api.parallel import DecoderShape
from erniecore.api.planning import LayoutSpace, ParallelLayout
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.planning import check_division, check_shape, choose_micro_batches, make_mesh, rank_ranges
from erniecore_hybrid_parallel.split import balanced, choose_split, costs_of


class HybridLayouts(LayoutSpace):
    """All products of axes that the model's shape and the table of products allow."""

    places = True

    def __init__(self, config: HybridConfig, shape: DecoderShape) -> None:
        self.config, self.shape = config, shape
        self._costs = costs_of(shape)
        #: a shape is asked once for each number of tensor and expert ranks, all that it knows of a layout
        self._divides = cache(lambda tensor, expert: _accepted(lambda: check_division(tensor, expert, shape)))
        self._balanced = cache(lambda virtual_stages, speeds: balanced(self._costs, virtual_stages, speeds))

    def selected(self, processes: int) -> ParallelLayout:
        mesh = make_mesh(self.config, processes)
        check_shape(mesh, self.shape)
        return ParallelLayout(
            **mesh.degrees,
            expert=mesh.expert,
            sharding_stage=self.config.sharding_stage,
            sequence=self.config.sequence,
            chunks=self.config.chunks,
            split=choose_split(self.config, self.shape),
            shares=choose_micro_batches(self.config, mesh),
            order=tuple(self.config.order),
            ranks=mesh.ranks,
            context_attention=self.config.context_attention,
            prefetch=self._prefetch(self.config.sharding_stage),
        )

    def layouts(self, processes: int) -> Iterator[ParallelLayout]:
        experts = any(layer.experts for layer in self.shape.layers)
        for tensor in divisors(processes):
            if not self._runs(ParallelLayout(tensor=tensor)):
                continue
            for pipeline in divisors(processes // tensor):
                if pipeline > len(self.shape.layers):
                    break
                for context in divisors(processes // tensor // pipeline):
                    ranks = processes // tensor // pipeline // context
                    keys = self.config.context_attention if context > 1 else "gather"
                    for sharding in divisors(ranks):
                        for expert in divisors(ranks) if experts else (1,):
                            if not self._divides(tensor, expert):
                                continue
                            degrees = tensor, context, sharding, ranks // sharding, pipeline, expert
                            found = ParallelLayout(*degrees, context_attention=keys)
                            if self._runs(found):
                                yield found

    def variants(self, layout: ParallelLayout) -> Iterable[ParallelLayout]:
        stages = (1, 2, 3) if layout.sharding > 1 else (1,)
        found = (
            replace(layout, sharding_stage=stage, sequence=sequence, prefetch=self._prefetch(stage))
            for stage in stages
            for sequence in ((False, True) if layout.tensor > 1 else (False,))
        )
        return [variant for variant in found if self._runs(variant)]

    def split(self, layout: ParallelLayout, speeds: Sequence[float] = ()) -> tuple[int, ...]:
        if layout.pipeline == 1:
            return ()
        return self._balanced(layout.pipeline * layout.chunks, tuple(speeds) * layout.chunks)

    def overrides(self, layout: ParallelLayout) -> tuple[str, ...]:
        own = self.config  # what it sets and this layout does not have is set back
        words = [
            f"parallel.{axis}={degree}" for axis, degree in layout.degrees.items() if degree > 1 or own.degree(axis) > 1
        ]
        words += [f"parallel.chunks={layout.chunks}"] if layout.chunks > 1 or own.chunks > 1 else []
        if layout.context_attention != own.context_attention:
            words.append(f"parallel.context_attention={layout.context_attention}")
        if layout.sharding > 1 or own.sharding_stage > 1:
            words.append(f"parallel.sharding_stage={layout.sharding_stage}")
        words += [f"parallel.sequence={str(layout.sequence).lower()}"] if layout.sequence or own.sequence else []
        if layout.split and layout.split != self.split(layout):
            words.append(f"parallel.split=[{','.join(map(str, layout.split))}]")
        elif own.split != "automatic":
            words.append("parallel.split=automatic")
        if layout.shares or own.micro_batches:
            words.append(f"parallel.micro_batches=[{','.join(map(str, layout.shares))}]")
        if layout.order or own.order:
            words.append(f"parallel.order=[{','.join(layout.order)}]")
        if layout.ranks or own.ranks:
            words.append(f"parallel.ranks=[{','.join(map(str, rank_ranges(layout.ranks)))}]")
        return tuple(words)

    def _prefetch(self, stage: int) -> int:
        return self.config.prefetch if stage == 3 else 0

    def _runs(self, layout: ParallelLayout) -> bool:
        """Whether a run with these settings would be accepted."""
        return self._divides(layout.tensor, layout.expert) and _accepted(lambda: make_mesh(layout, layout.size))


def _accepted(check: Callable[[], object]) -> bool:
    """Whether a check finds nothing."""
    try:
        check()
    except ConfigError:
        return False
    return True


@cache
def divisors(number: int) -> list[int]:
    """The divisors of a number, in ascending order."""
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]
