"""The four ways into and out of the part of a model that ranks share, each with its conjugate as gradient."""

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
    def forward(ctx: Any, x: Tensor, comm: Comm) -> Tensor:
        ctx.comm = comm
        return comm.all_gather(x, x.ndim - 1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        size = dy.shape[-1] // ctx.comm.size
        return dy[..., ctx.comm.index * size : (ctx.comm.index + 1) * size].clone()


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


def join(x: Tensor, comm: Comm) -> Tensor:
    """Everybody's ``x`` along the last axis; used alike on every rank, so each part's gradient is its own slice."""
    y: Tensor = _Join.apply(x, comm)
    return y
