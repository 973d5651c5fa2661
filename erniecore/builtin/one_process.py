"""The layouts of the strategy ``single``, for the planner: there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from erniecore.types.layouts import LayoutSpace, ParallelLayout


class OneProcess(LayoutSpace):
    """The only layout of ``single``."""

    def selected(self, processes: int) -> ParallelLayout:
        return ParallelLayout()

    def layouts(self, processes: int) -> Iterable[ParallelLayout]:
        return [ParallelLayout()] if processes == 1 else []

    def variants(self, layout: ParallelLayout) -> Iterable[ParallelLayout]:
        return [layout]

    def split(self, layout: ParallelLayout, speeds: Sequence[float] = ()) -> tuple[int, ...]:
        return ()

    def overrides(self, layout: ParallelLayout) -> tuple[str, ...]:
        return ()
