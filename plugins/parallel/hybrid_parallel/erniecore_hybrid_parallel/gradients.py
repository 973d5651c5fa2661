"""Sharded gradients (stage 2): each gradient is summed over the ranks as soon as the backward pass has made it, and only
this rank's part is kept, so whole gradients exist for few parameters at a time. The pass goes on meanwhile.

Rajbhandari et al., "ZeRO" (2020), arXiv:1910.02054. Gradients arrive in an order that may differ between ranks, messages
must not: they are sent in the reverse order of the parameters, each as soon as its predecessors are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore_hybrid_parallel.background import AsyncComm, Pending
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.placement import Placement

#: elements that wait for each other to become one message
WAITING = 1 << 20
#: messages that are on their way at a time: each is as large as the gradients in it
GOING = 2


@dataclass(eq=False)
class Message:
    """Gradients on their way: of these slots, so many elements of each kept here."""

    slots: list[Any]
    sizes: list[int]
    place: Placement
    pending: Pending


class GradientShards:
    """The gradients of one optimizer.

    Args:
        slots: its slots. place: of a parameter by name; its ``sharding`` ranks keep a part each, its ``replicas`` the same.
        all_gather_object: see ``erniecore.api.parallel.ProcessGroup``. async_of: the group with the ranks of another one whose
            collectives do not wait; None: the backward pass waits for each message.
    """

    def __init__(
        self,
        slots: Sequence[Any],
        place: Callable[[str], Placement],
        all_gather_object: Callable[[Any], list[Any]],
        async_of: Callable[[Comm], AsyncComm] | None = None,
    ) -> None:
        self._async_of = async_of
        self._scattering, self._summing = list[Message](), list[Message]()
        self.slots = list(reversed(slots))
        self._place, self._all_gather_object = place, all_gather_object
        self._next, self._arrived, self._waiting = 0, set[int](), list[Any]()
        for index, slot in enumerate(self.slots):
            slot.parameter._register_backward_hook(partial(self._arrive, index))

    def _arrive(self, index: int, *_: Any) -> None:
        """The gradient of one parameter is there; one that comes again in the same pass waits for its end."""
        if index < self._next:
            return
        self._arrived.add(index)
        while self._next in self._arrived:
            self._send(self.slots[self._next])
            self._next += 1

    def backward_done(self) -> None:
        """The end of a backward pass: what no hook has told of, as zeros where there is none. Messages may still be on their way,
        see :meth:`finish`."""
        for slot in self.slots[self._next :]:
            self._send(slot)
        self._flush()
        self._next, self._arrived = 0, set()
        again = [i for i, slot in enumerate(self.slots) if slot.parameter.grad is not None]
        for index in sorted({i for indices in self._all_gather_object(again) for i in indices}):
            self._send(self.slots[index])
        self._flush()

    def finish(self) -> None:
        """Every gradient of the backward passes so far is in ``slot.reduced``."""
        self._advance(0)

    def _send(self, slot: Any) -> None:
        if self._waiting and self._kind(self._waiting[0]) != self._kind(slot):
            self._flush()
        self._waiting.append(slot)
        if sum(prod(self._shape(waiting)) for waiting in self._waiting) >= WAITING:
            self._flush()

    def _kind(self, slot: Any) -> tuple[Any, ...]:
        """What is alike among the slots of one message."""
        place = self._place(slot.name)
        return slot.parameter.dtype, place.sharding.ranks, place.replicas.ranks

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _flush(self) -> None:
        """One message for all that wait: rows are ranks, columns the parts of the parameters."""
        slots, self._waiting = self._waiting, []
        if not slots:
            return
        place = self._place(slots[0].name)
        rows = [self._rows(slot, place.sharding.size) for slot in slots]
        # the backward pass may still need the memory of a single gradient
        joined = paddle.concat(rows, axis=1) if len(rows) > 1 else rows[0].clone()
        for slot in slots:
            slot.parameter.grad = None
        sizes = [row.shape[1] for row in rows]
        del rows
        if self._async_of is None:
            self._keep(slots, sizes, place.replicas.all_reduce(place.sharding.reduce_scatter(joined).flatten()))
            return
        self._scattering.append(Message(slots, sizes, place, self._async_of(place.sharding).reduce_scatter(joined)))
        del joined
        self._advance(GOING)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _advance(self, most: int) -> None:
        """Go on with the messages that have come, in their order; wait for the first ones where more than ``most`` have not.
        First the ranks that keep a part each sum, then those that keep the same."""
        going, summing = self._scattering, self._summing
        while going and (len(going) > most or going[0].pending.done()):
            message = going.pop(0)
            assert self._async_of is not None
            message.pending = self._async_of(message.place.replicas).all_reduce(message.pending.wait().flatten())
            summing.append(message)
        while summing and (len(summing) > most or summing[0].pending.done()):
            message = summing.pop(0)
            self._keep(message.slots, message.sizes, message.pending.wait())

    def _keep(self, slots: Sequence[Any], sizes: Sequence[int], mine: Tensor) -> None:
        """``mine``: the sums, one slot after the other."""
        start = 0
        for slot, size in zip(slots, sizes, strict=True):
            kept = self._range(slot)
            if kept is None:
                reduced = mine[start : start + size].clone().reshape(slot.parameter.shape)
            else:
                reduced = mine[start : start + kept[1] - kept[0]].clone()
            slot.reduced = reduced if slot.reduced is None else slot.reduced.add_(reduced)
            start += size

    def _shape(self, slot: Any) -> tuple[int, ...]:
        """Shape of the gradient, equal on all ranks."""
        return self._place(slot.name).flat_of or tuple(slot.parameter.shape)

    def _range(self, slot: Any) -> tuple[int, int] | None:
        """(start, stop) of the flattened gradient that this rank keeps; ``None``: all of it."""
        shape = self._place(slot.name).flat_of
        return slot.part if shape is None else self._place(slot.name).range_of(shape)

    def _rows(self, slot: Any, count: int) -> Tensor:
        """The flattened gradient, padded and reshaped to [count, n], one row per rank."""
        gradient = slot.parameter.grad
        if gradient is None:
            gradient = paddle.zeros(self._shape(slot), slot.parameter.dtype)
        flat, padding = gradient.flatten(), -gradient.size % count
        if padding:
            flat = paddle.concat([flat, paddle.zeros([padding], flat.dtype)])
        return flat.reshape([count, -1])
