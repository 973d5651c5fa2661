"""Many small tensors as few large messages. ``slots`` are the optimizer's: ``parameter``, ``part`` and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore_hybrid_parallel.comm import Comm

#: elements per message
BUCKET = 6 << 20


def buckets(slots: Sequence[Any]) -> Iterator[list[Any]]:
    """Groups of adjacent slots with one dtype and up to ``BUCKET`` elements; a larger slot gets a bucket of its own."""
    pending: list[Any] = []
    size = 0
    for slot in slots:
        number = slot.parameter.size
        if pending and (size + number > BUCKET or slot.parameter.dtype != pending[0].parameter.dtype):
            yield pending
            pending, size = [], 0
        pending.append(slot)
        size += number
    if pending:
        yield pending


def by_comm(slots: Sequence[Any], comm_of: Callable[[Any], Comm]) -> list[tuple[Comm, list[Any]]]:
    """Slots by their process group, in the order of each group's first slot, which is the same on all ranks of a group."""
    found: dict[tuple[int, ...], tuple[Comm, list[Any]]] = {}
    for slot in slots:
        comm = comm_of(slot)
        found.setdefault(comm.ranks, (comm, []))[1].append(slot)
    return list(found.values())


@paddle.no_grad()  # type: ignore[untyped-decorator]
def all_reduce_gradients(slots: Sequence[Any], comm: Comm) -> None:
    """Sum ``parameter.grad`` over ``comm``, in place. A parameter without a gradient here has one of zeros: another
    rank's rows may have reached it."""
    if comm.size == 1:
        return
    for bucket in buckets(slots):
        split_gradients(bucket, comm.all_reduce(join_gradients(bucket)))


def join_gradients(bucket: Sequence[Any]) -> Tensor:
    """The gradients of a bucket as one flat tensor: a new one of several, the memory of the gradient of one. A parameter without
    one has one of zeros."""
    found = [paddle.zeros_like(p) if p.grad is None else p.grad for p in (slot.parameter for slot in bucket)]
    return found[0].flatten() if len(found) == 1 else paddle.concat([gradient.flatten() for gradient in found])


def split_gradients(bucket: Sequence[Any], joined: Tensor) -> None:
    """The reverse of :func:`join_gradients`: ``joined`` becomes the gradients."""
    start = 0
    for slot in bucket:
        stop = start + slot.parameter.size
        slot.parameter.grad = joined[start:stop].reshape(slot.parameter.shape)
        start = stop


@paddle.no_grad()  # type: ignore[untyped-decorator]
def sum_ends(slots: Sequence[Any], comm: Comm) -> None:
    """Sum the gradients of parameters that both ranks of ``comm`` hold and use differently; what is kept of them, where
    only a part is."""
    for slot in slots:
        if slot.reduced is not None:
            comm.all_reduce(slot.reduced)
        else:
            all_reduce_gradients([slot], comm)


@paddle.no_grad()  # type: ignore[untyped-decorator]
def all_gather_updates(slots: Sequence[Any], comm: Comm) -> None:
    """All-gather the ``part`` of the flattened parameters that each rank has updated into the parameters of all ranks."""
    for bucket in buckets(slots):
        sizes = [-(-slot.parameter.size // comm.size) for slot in bucket]
        mine = paddle.zeros([sum(sizes)], bucket[0].parameter.dtype)
        offset = 0
        for slot, size in zip(bucket, sizes, strict=True):
            start, stop = slot.part
            if stop > start:
                mine[offset : offset + stop - start] = slot.parameter.flatten()[start:stop]
            offset += size
        joined = comm.all_gather(mine).reshape([comm.size, -1])
        offset = 0
        for slot, size in zip(bucket, sizes, strict=True):
            flat = joined[:, offset : offset + size].flatten()[: slot.parameter.size]
            slot.parameter.set_value(flat.reshape(slot.parameter.shape))
            offset += size
