"""Parameters of the next layers (stage 3), which are gathered while a layer computes. Which layer follows which is learned from
the passes so far, forward and backward apart, so the first pass of each kind gathers nothing ahead; models say nothing of it,
and parts of pipelines, copies of models and layers that are skipped have their own orders. All ranks enter the same layers in
the same order, so they foretell the same.

As in "ZeRO-Infinity" (Rajbhandari et al., 2021), arXiv:2104.07857, section 6.2, and in PyTorch's FSDP (Zhao et al., 2023),
arXiv:2304.11277, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

#: gives what a unit's parameters are as a whole, once; may wait
Gathered = Callable[[], Sequence[Any]]


class Prefetch:
    """The gathers that are under way.

    Args:
        ahead: of how many units that follow. begin: starts to gather the parameters of a unit.
    """

    def __init__(self, ahead: int, begin: Callable[[Any], Gathered]) -> None:
        self.ahead, self._begin = ahead, begin
        #: unit -> the next one, in forward passes and in backward passes
        self._next: tuple[WeakKeyDictionary[Any, ref[Any]], ...] = (WeakKeyDictionary(), WeakKeyDictionary())
        self._going: list[tuple[Any, Gathered]] = []
        self._last: Any = None
        self.backward = False

    def take(self, unit: Any) -> Sequence[Any] | None:
        """What was gathered of ``unit`` ahead; waits for it."""
        for index, (other, gathered) in enumerate(self._going):
            if other is unit:
                del self._going[index]
                return gathered()
        return None

    def entered(self, unit: Any, *, backward: bool) -> None:
        """``unit`` computes now: begin to gather those that follow.

        Args:
            backward: its gradients come; what is entered from then on until :meth:`rest` is that of a backward pass, layers
                that are computed once more included.
        """
        if not self.ahead:
            return
        self.backward |= backward
        order = self._next[self.backward]
        if self._last is not None and self._last is not unit:
            order[self._last] = ref(unit)
        self._last = unit
        wanted = list(self._following(unit))
        for other, gathered in self._going:
            if not any(other is one for one in wanted):
                gathered()  # another pass than foretold
        self._going = [(other, gathered) for other, gathered in self._going if any(other is one for one in wanted)]
        for one in wanted:
            if not any(one is other for other, _ in self._going):
                self._going.append((one, self._begin(one)))

    def ended(self) -> None:
        """A forward pass has ended, and another one, or a backward pass, comes: its first layer does not follow the last one."""
        self._last = None

    def rest(self) -> None:
        """No pass goes on: what was gathered ahead for nothing is let go, and the next pass is a forward pass."""
        for _, gathered in self._going:
            gathered()
        self._going, self._last, self.backward = [], None, False

    def _following(self, unit: Any) -> Iterator[Any]:
        order, at = self._next[self.backward], unit
        for _ in range(self.ahead):
            found = order.get(at)
            at = None if found is None else found()
            if at is None or at is unit:
                return
            yield at
