"""Collectives of one group of ranks over ``paddle.distributed``: its own primitives where the backend has them; gloo lacks
reduce_scatter and all_to_all, which are put together from all_reduce and from messages between pairs there. Nothing here knows
of training.

A collective that fails means that another process is gone or late: ``EnvironmentFault`` with code ERN-E021.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle  # noqa: TID253
import paddle.distributed as dist  # noqa: TID253
from numpy.typing import NDArray
from paddle import Tensor  # noqa: TID253

from erniecore.api import EnvironmentFault
from erniecore_hybrid_parallel.monitored_barrier import MonitoredBarrier

#: backends without reduce_scatter and all_to_all
POOR = ("gloo",)


@contextmanager
def contact(what: str, who: str = "another one of the run") -> Iterator[None]:
    """Backends and the store report a peer that is gone, or that froze within a collective, as ``RuntimeError``,
    ``ValueError`` or ``OSError`` with a line of C++. ``who``: with whom ``what`` is done."""
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise EnvironmentFault(
            f"this process lost contact with {who}",
            where=what,
            found=lines[-1][-200:] if lines else "",
            fix="look at the log of the rank that ended first",
            code="ERN-E021",
        ) from error


def num_bytes(tensor: Tensor) -> int:
    """Size of a tensor, in bytes."""
    return int(tensor.size) * int(tensor.element_size())


class Comm:
    """A group of ranks, this one among them.

    Args:
        ranks: global ranks in order. group: of ``paddle.distributed``; ``None`` for a group of one.
        backend: ``gloo``, ``nccl``, ``bkcl``, ``xccl``, …
        barrier: called before each collective, for backends with a fixed timeout.

    Attributes:
        size: number of ranks. index: this rank's place among them.
        sent: bytes that this rank has sent, counted as in ring algorithms.
        waited: seconds in collectives, most of them for members that came later.
        fault: what the collective raised that failed.
        beside: its collectives go on while the rank computes (``background.py``), which is no waiting.
    """

    def __init__(
        self, ranks: Sequence[int], rank: int, group: Any, backend: str, barrier: MonitoredBarrier | None = None
    ) -> None:
        self.ranks, self.group, self.backend, self.barrier = tuple(ranks), group, backend, barrier
        self.sent, self.waited = 0, 0.0
        self.fault: EnvironmentFault | None = None
        self.beside = False
        self.size, self.index = len(self.ranks), self.ranks.index(rank)
        assert (self.size == 1) == (group is None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Comm:
        """Copies of a model talk through the same group."""
        return self

    @contextmanager
    def together(self, collective: str, amount: int) -> Iterator[None]:
        """Around what members do together: wait for the others, count ``amount`` bytes, and say what a failure means."""
        started = time.perf_counter()
        try:
            if self.barrier is not None:
                self.barrier(collective)
            self.sent += amount
            with contact(collective, self.others):
                yield
        except EnvironmentFault as fault:
            self.fault = fault
            raise
        finally:
            if not self.beside:
                self.waited += time.perf_counter() - started

    @property
    def others(self) -> str:
        """The other members; of many, that it is one of them."""
        names = [f"rank {rank}" for index, rank in enumerate(self.ranks) if index != self.index]
        return names[0] if len(names) == 1 else f"one of {len(names)} ranks: {', '.join(names[:8])}"

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum over the group, in place; the same bits on every rank."""
        if self.size > 1:
            with self.together("all_reduce", 2 * num_bytes(tensor) * (self.size - 1) // self.size):
                dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_max(self, tensor: Tensor) -> Tensor:
        """Elementwise maximum over the group, in place."""
        if self.size > 1:
            with self.together("all_reduce", 2 * num_bytes(tensor) * (self.size - 1) // self.size):
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return tensor

    def all_gather(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """Everybody's ``tensor`` (alike in shape) joined along ``axis`` in the order of ranks."""
        if self.size == 1:
            return tensor
        first = paddle.moveaxis(tensor, axis, 0) if axis else tensor
        joined = paddle.empty([self.size * first.shape[0], *first.shape[1:]], first.dtype)
        if joined.size:
            with self.together("all_gather", num_bytes(first) * (self.size - 1)):
                dist.stream.all_gather(joined, first.contiguous(), group=self.group)
        return paddle.moveaxis(joined, 0, axis).contiguous() if axis else joined

    def reduce_scatter(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """This rank's part along ``axis`` (a multiple of ``size`` long) of the sum over the group; ``tensor`` may be
        overwritten."""
        if self.size == 1:
            return tensor
        first = paddle.moveaxis(tensor, axis, 0).contiguous() if axis else tensor.contiguous()
        length = first.shape[0] // self.size
        if self.backend in POOR:
            shard = self.all_reduce(first)[self.index * length : (self.index + 1) * length].clone()
        else:
            shard = paddle.empty([length, *first.shape[1:]], first.dtype)
            with self.together("reduce_scatter", num_bytes(first) * (self.size - 1) // self.size):
                dist.stream.reduce_scatter(shard, first, group=self.group)
        return paddle.moveaxis(shard, 0, axis).contiguous() if axis else shard

    def all_to_all(self, tensor: Tensor, counts: NDArray[np.int64]) -> Tensor:
        """Rows for each rank, one after the other in ``tensor`` -> rows from each rank in the order of ranks.

        Args:
            counts: [from, to], how many rows go where; the same on every rank.
        """
        if self.size == 1:
            return tensor
        sent, received = counts[self.index], counts[:, self.index]
        if self.backend not in POOR:
            rows = paddle.empty([int(received.sum()), *tensor.shape[1:]], tensor.dtype)
            with self.together("all_to_all", num_bytes(tensor)):
                dist.alltoall_single(
                    rows,
                    tensor.contiguous(),
                    out_split_sizes=received.tolist(),
                    in_split_sizes=sent.tolist(),
                    group=self.group,
                )
            return rows
        ends = np.cumsum(sent)
        own = [tensor[end - count : end] for end, count in zip(ends.tolist(), sent.tolist(), strict=True)]
        if self.size % 2:
            return self._from_everything(tensor, counts)
        with self.together("all_to_all", num_bytes(tensor) - num_bytes(own[self.index])):
            return paddle.concat(self._exchanged(own, received.tolist()))

    def _exchanged(self, own: list[Tensor], received: list[int]) -> list[Tensor]:
        """The rows of each rank for this one; rows go only where they are wanted, from one rank to one other at a time.

        A group of gloo counts its messages on each rank, so all ranks have equally many: where there is nothing, a row of
        zeros goes."""
        found, spare = list(own), paddle.zeros([1, *own[0].shape[1:]], own[0].dtype)
        for partner in partners(self.index, self.size):
            there = self.ranks[partner]
            rows = own[partner].contiguous() if own[partner].shape[0] else spare
            room = paddle.empty([max(1, received[partner]), *spare.shape[1:]], spare.dtype)
            if self.index < partner:  # a send waits until the other end receives
                dist.send(rows, there, group=self.group)
                dist.recv(room, there, group=self.group)
            else:
                dist.recv(room, there, group=self.group)
                dist.send(rows, there, group=self.group)
            found[partner] = room[: received[partner]]
        return found

    def _from_everything(self, tensor: Tensor, counts: NDArray[np.int64]) -> Tensor:
        """As :meth:`all_to_all`, of all rows of all ranks: an odd number of ranks is not made of pairs."""
        longest = int(counts.sum(axis=1).max())
        padded = paddle.zeros([longest, *tensor.shape[1:]], tensor.dtype)
        if tensor.shape[0]:
            padded[: tensor.shape[0]] = tensor
        everything = self.all_gather(padded)
        blocks = []
        for source in range(self.size):
            start = source * longest + int(counts[source, : self.index].sum())
            blocks.append(everything[start : start + int(counts[source, self.index])])
        return paddle.concat(blocks)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """The tensor of the group's rank ``source``, in place."""
        if self.size > 1:
            with self.together("broadcast", num_bytes(tensor)):
                dist.broadcast(tensor, src=self.ranks[source], group=self.group)
        return tensor


def partners(index: int, size: int) -> list[int]:
    """With whom rank ``index`` of ``size``, an even number, is paired in each of ``size`` - 1 rounds, in which all ranks are
    paired (the circle method of round-robin tournaments)."""
    last, found = size - 1, []
    for turn in range(last):
        other = (2 * turn - index) % last
        found.append(turn if index == last else last if other == index else other)
    return found
