"""The ways into and out of the part of a model that ranks share, each with its conjugate as gradient."""

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
        return part_of(dy, ctx.comm, ctx.axis)


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
    """``x``, which every rank has; its gradient is the sum over ranks."""
    if comm.size == 1:
        return x
    y: Tensor = _Enter.apply(x, comm)
    return y


def leave(x: Tensor, comm: Comm) -> Tensor:
    """The sum over ranks, which every rank gets; its gradient is that of each summand."""
    if comm.size == 1:
        return x
    y: Tensor = _Leave.apply(x, comm)
    return y


def join(x: Tensor, comm: Comm, axis: int = -1) -> Tensor:
    """Everybody's ``x`` along ``axis``; used alike on every rank, so each part's gradient is its own slice."""
    if comm.size == 1:
        return x
    y: Tensor = _Join.apply(x, comm, axis % x.ndim)
    return y


def collect(x: Tensor, comm: Comm, axis: int) -> Tensor:
    """Everybody's ``x`` along ``axis``; each rank does something else with it, so their gradients are summed."""
    if comm.size == 1:
        return x
    y: Tensor = _Collect.apply(x, comm, axis)
    return y


def scatter(x: Tensor, comm: Comm, axis: int) -> Tensor:
    """This rank's part along ``axis`` of the sum over ranks: the adjoint of :func:`collect`."""
    if comm.size == 1:
        return x
    y: Tensor = _Scatter.apply(x, comm, axis)
    return y


def total(x: Tensor, comm: Comm) -> Tensor:
    """The sum over ranks; each does something else with it, or takes a part of the gradient, so gradients are summed."""
    if comm.size == 1:
        return x
    y: Tensor = _Total.apply(x, comm)
    return y


def part_of(x: Tensor, comm: Comm, axis: int) -> Tensor:
    """This rank's slice of ``x`` along ``axis``."""
    size = x.shape[axis] // comm.size
    return x.slice([axis], [comm.index * size], [(comm.index + 1) * size]).clone()
