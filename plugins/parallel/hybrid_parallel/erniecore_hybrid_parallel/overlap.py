"""Gradients that are summed while the backward pass goes on (plain data parallelism and sharding stage 1; ``gradients.py`` has
the other stages): a bucket is sent as soon as the last of its gradients is final, so most of the messages are done when the pass
ends. Buckets are those of a reduction at the end, in the same groups of ranks: the bits are the same.

Li et al., "PyTorch Distributed" (2020), arXiv:2006.15704, section 3.2. How often a gradient arrives in a micro-batch (more than
once where layers are computed again) is learned from the step before, so in the first step nothing is early; gradients that
arrive later than that foretold are summed once more. Buckets of one group go in the reverse order of the parameters, each when
its predecessors have gone, because messages must have one order on all ranks and gradients have not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore_hybrid_parallel.background import AsyncComm, Pending
from erniecore_hybrid_parallel.buckets import all_reduce_gradients, buckets, by_comm, join_gradients, split_gradients
from erniecore_hybrid_parallel.comm import Comm


@dataclass(eq=False)
class Bucket:
    """Gradients of one message. ``missing``: how many are not final; ``early``: whether it went before the end of the pass."""

    slots: list[Any]
    missing: int = 0
    early: bool = False
    pending: Pending | None = None


@dataclass(eq=False)
class Lane:
    """Buckets of one group of ranks in the order in which they are sent. ``sent``: how many are."""

    comm: Comm
    beside: AsyncComm
    buckets: list[Bucket]
    sent: int = 0
    bucket_of: dict[int, Bucket] = field(default_factory=dict)


class GradientOverlap:
    """Sums of the gradients of one optimizer.

    Args:
        comm_of: the group over which the gradient of a slot is summed. async_of: the group with the same ranks whose
            collectives do not wait. at_the_end: names of parameters whose gradients change between the backward pass and
            :meth:`reduce`.
    """

    def __init__(
        self, comm_of: Callable[[Any], Comm], async_of: Callable[[Comm], AsyncComm], at_the_end: Collection[str]
    ) -> None:
        self._comm_of, self._async_of, self._at_the_end = comm_of, async_of, at_the_end
        self._slots: list[Any] = []
        self._lanes: list[Lane] = []
        self._lane_of: dict[int, Lane] = {}
        self._hooked: dict[int, Any] = {}
        self._passes, self._changes = 0, False
        self._arrived: Counter[int] = Counter()
        #: parameter -> arrivals in a micro-batch; of one that is not here, it is not known when it is final
        self._usual: dict[int, int] = {}

    def attach(self, slots: Sequence[Any]) -> None:
        """The slots of the optimizer."""
        self._plan(slots)

    def begin(self, passes: int) -> None:
        """The gradients of a step come now, in so many backward passes of every parameter."""
        self._reset(passes)

    def _reset(self, passes: int) -> None:
        self._passes = passes
        self._arrived.clear()
        for lane in self._lanes:
            lane.sent = 0
            for bucket in lane.buckets:
                bucket.missing, bucket.early, bucket.pending = len(bucket.slots), False, None

    def _plan(self, slots: Sequence[Any]) -> None:
        self._slots, self._lanes, self._lane_of = list(slots), [], {}
        for comm, members in by_comm(slots, self._comm_of):
            found = [Bucket(bucket) for bucket in buckets(members)]
            lane = Lane(comm, self._async_of(comm), found[::-1])
            self._lanes.append(lane)
            for bucket in found:
                for slot in bucket.slots:
                    key = id(slot.parameter)
                    lane.bucket_of[key], self._lane_of[key] = bucket, lane
                    if key not in self._hooked:
                        self._hooked[key] = slot.parameter
                        slot.parameter._register_backward_hook(partial(self._arrive, key))

    def _arrive(self, key: int, *_: Any) -> None:
        """One more part of a gradient is there."""
        self._arrived[key] += 1
        if self._usual.get(key, 0) * self._passes != self._arrived[key] or key not in self._lane_of:
            return
        lane = self._lane_of[key]
        lane.bucket_of[key].missing -= 1
        while lane.sent < len(lane.buckets) and lane.buckets[lane.sent].missing == 0:
            lane.buckets[lane.sent].early = True
            self._send(lane)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _send(self, lane: Lane) -> None:
        bucket = lane.buckets[lane.sent]
        lane.sent += 1
        if lane.comm.size == 1:
            return
        joined = join_gradients(bucket.slots)
        if len(bucket.slots) == 1:
            joined = joined.clone()  # the backward pass may still need the memory of a gradient
        for slot in bucket.slots:
            slot.parameter.grad = None
        bucket.pending = lane.beside.all_reduce(joined)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def reduce(self, slots: Sequence[Any]) -> None:
        """Sum ``parameter.grad`` of ``slots`` over their groups: waits for what is on its way, and sends the rest."""
        mine, given = {id(slot.parameter) for slot in self._slots}, {id(slot.parameter) for slot in slots}
        if not mine & given:  # of another optimizer
            self._reduce_rest(slots)
            return
        for lane in self._lanes:
            while lane.sent < len(lane.buckets):
                self._send(lane)
            self._finish(lane)
        for slot in self._slots:
            if id(slot.parameter) not in given:
                slot.parameter.grad = None
        self._reduce_rest([slot for slot in slots if id(slot.parameter) not in mine])
        self._learn(slots, same=mine == given)

    def _reduce_rest(self, slots: Sequence[Any]) -> None:
        for comm, members in by_comm(slots, self._comm_of):
            all_reduce_gradients(members, comm)

    def _finish(self, lane: Lane) -> None:
        """All gradients of a lane are the sums; what arrived after its bucket had gone, on any rank, is added."""
        if lane.comm.size == 1:
            return
        early = [slot for bucket in lane.buckets if bucket.early for slot in bucket.slots]
        # copies: assigning a gradient changes the tensor that was read before
        after = {id(slot.parameter): slot.parameter.grad.clone() for slot in early if slot.parameter.grad is not None}
        for bucket in lane.buckets:
            assert bucket.pending is not None
            split_gradients(bucket.slots, bucket.pending.wait())
            bucket.pending = None
        planned = [slot for bucket in lane.buckets for slot in bucket.slots]
        came_late = lane.comm.all_max(paddle.to_tensor([float(id(slot.parameter) in after) for slot in planned]))
        for slot, late in zip(planned, came_late.tolist(), strict=True):
            if late:
                more: Tensor | None = after.get(id(slot.parameter))
                more = paddle.zeros_like(slot.parameter) if more is None else more
                slot.parameter.grad.add_(lane.comm.all_reduce(more))

    def _learn(self, slots: Sequence[Any], *, same: bool) -> None:
        """What the next step may foretell: nothing where the parameters that are trained change (LISA)."""
        self._changes |= not same
        self._usual = {}
        if self._passes and not self._changes:
            for slot in slots:
                count, rest = divmod(self._arrived[id(slot.parameter)], self._passes)
                if count and not rest and slot.name not in self._at_the_end:
                    self._usual[id(slot.parameter)] = count
        if not same:
            self._plan(slots)
        self._reset(0)
