"""Collectives at the boundaries of tensor- and sequence-parallel regions, each with its adjoint as gradient."""

from __future__ import annotations

from typing import Any

from paddle import Tensor  # noqa: TID253
from paddle.autograd import PyLayer  # noqa: TID253

from erniecore_hybrid_parallel.comm import Comm


class _Enter(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm) -> Tensor:
        ctx.comm = comm
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ctx.comm.all_reduce(dy.clone())


class _Leave(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm) -> Tensor:
        return comm.all_reduce(x.clone())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy.clone()


class _Join(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm, axis: int) -> Tensor:
        ctx.comm, ctx.axis = comm, axis
        return comm.all_gather(x, axis)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return local_slice(dy, ctx.comm, ctx.axis)


class _Collect(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm, axis: int) -> Tensor:
        ctx.comm, ctx.axis = comm, axis
        return comm.all_gather(x, axis)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ctx.comm.reduce_scatter(dy.clone(), ctx.axis)


class _Scatter(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm, axis: int) -> Tensor:
        ctx.comm, ctx.axis = comm, axis
        return comm.reduce_scatter(x.clone(), axis)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ctx.comm.all_gather(dy, ctx.axis)


class _Total(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm) -> Tensor:
        ctx.comm = comm
        return comm.all_reduce(x.clone())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ctx.comm.all_reduce(dy.clone())


def enter(x: Tensor, comm: Comm) -> Tensor:
    """``x``, equal on all ranks; its gradient is summed over the ranks."""
    if comm.size == 1:
        return x
    y: Tensor = _Enter.apply(x, comm)
    return y


def leave(x: Tensor, comm: Comm) -> Tensor:
    """The sum over ranks, on every rank; the gradient is passed through."""
    if comm.size == 1:
        return x
    y: Tensor = _Leave.apply(x, comm)
    return y


def join(x: Tensor, comm: Comm, axis: int = -1) -> Tensor:
    """All ranks' ``x`` concatenated along ``axis``. All ranks use it in the same way, so each keeps its slice of the gradient."""
    if comm.size == 1:
        return x
    y: Tensor = _Join.apply(x, comm, axis % x.ndim)
    return y


def collect(x: Tensor, comm: Comm, axis: int) -> Tensor:
    """All ranks' ``x`` concatenated along ``axis``. Ranks use it differently, so gradients are reduce-scattered."""
    if comm.size == 1:
        return x
    y: Tensor = _Collect.apply(x, comm, axis)
    return y


def scatter(x: Tensor, comm: Comm, axis: int) -> Tensor:
    """This rank's slice along ``axis`` of the sum over ranks: the adjoint of :func:`collect`."""
    if comm.size == 1:
        return x
    y: Tensor = _Scatter.apply(x, comm, axis)
    return y


def total(x: Tensor, comm: Comm) -> Tensor:
    """The sum over ranks; ranks use it differently, so gradients are summed too."""
    if comm.size == 1:
        return x
    y: Tensor = _Total.apply(x, comm)
    return y


def local_slice(x: Tensor, comm: Comm, axis: int) -> Tensor:
    """This rank's slice of ``x`` along ``axis``."""
    size = x.shape[axis] // comm.size
    return x.slice([axis], [comm.index * size], [(comm.index + 1) * size]).clone()
