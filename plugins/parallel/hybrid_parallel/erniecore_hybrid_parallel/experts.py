"""Expert parallelism: each rank of a group has some experts of every layer. Tokens are dispatched to the ranks of their experts
and the outputs are combined on the way back. No token is dropped and nothing is padded to a capacity.

A token is sent once to each rank that has one of its experts, with its weights for them. There the layer computes as on one
device, so adapters and kernels work unchanged. Every rank of the group takes part in every pass, even with nothing to send.

Lepikhin et al., "GShard" (2020), arXiv:2006.16668; Gale et al., "MegaBlocks" (2022), for the absence of a capacity.
Letters: T tokens here, N rows sent, R rows received, H hidden, k experts per token, E experts, D ranks of the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import paddle  # noqa: TID253
from numpy.typing import NDArray
from paddle import Tensor, nn  # noqa: TID253
from paddle.autograd import PyLayer  # noqa: TID253

from erniecore.api import ConfigError, PluginError
from erniecore.api.experts import ExpertLayer, SourcedExperts
from erniecore.api.layers import derived, replaced
from erniecore.api.parallel import Layout
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.quantized import packed_names, tensors_of
from erniecore_hybrid_parallel.tensor import Shard, keep_shard


class DispatchPlan(NamedTuple):
    """Which rank sends which tokens in one pass of one layer.

    Attributes:
        tokens: int64 [N], the token of each row to send, sorted by rank. places: per rank, the row of each token [T]; N: none.
        counts: [D, D], rows from each rank (first axis) to each rank.
        local: int64 [max(R, 1), k], local expert numbers of the received rows; -1 for experts of other ranks.
    """

    comm: Comm
    tokens: Tensor
    places: list[Tensor]
    counts: NDArray[np.int64]
    local: Tensor

    @property
    def sent(self) -> int:
        """N, rows that this rank sends."""
        return int(self.counts[self.comm.index].sum())

    @property
    def received(self) -> int:
        """R, rows that this rank receives."""
        return int(self.counts[:, self.comm.index].sum())

    def sources(self) -> Tensor:
        """int64 [max(R, 1)]: the group rank that sent each received row."""
        counts = self.counts[:, self.comm.index]
        return paddle.to_tensor(
            np.repeat(np.arange(self.comm.size), counts) if self.received else np.zeros(1, np.int64)
        )

    def dispatch(self, x: Tensor) -> Tensor:
        """Send tokens [T, ...] to the ranks of their experts -> received rows [max(R, 1), ...]; one row of zeros if R = 0."""
        rows = paddle.gather(x, self.tokens) if self.sent else paddle.empty([0, *x.shape[1:]], x.dtype)
        there = self.comm.all_to_all(rows, self.counts)
        return there if self.received else paddle.zeros([1, *x.shape[1:]], x.dtype)

    def combine(self, y: Tensor) -> Tensor:
        """The adjoint of :meth:`dispatch`: return rows [max(R, 1), H] to their senders and sum them per token [T, H]."""
        rows = self.comm.all_to_all(y[: self.received], self.counts.T)
        padded = paddle.concat([rows, paddle.zeros([1, *y.shape[1:]], y.dtype)])
        total = paddle.gather(padded, self.places[0])
        for place in self.places[1:]:
            total = total + paddle.gather(padded, place)
        return total


def plan_dispatch(
    experts_Tk: NDArray[Any], num_local: int, comm: Comm, subgroup: tuple[int, int] = (0, 1)
) -> DispatchPlan:
    """Plan which tokens are sent to which rank.

    Args:
        experts_Tk: -1 for none. num_local: experts per rank.
        subgroup: (index, size) of this rank among the ranks that split the experts of each rank of ``comm`` further. All of
            them have the same tokens, and each sends those for its own experts.
    """
    index, count = subgroup
    holder_Tk = experts_Tk // num_local  # of the joint cut
    mine_Tk = (experts_Tk >= 0) & (holder_Tk % count == index)
    rank_Tk = np.where(mine_Tk, holder_Tk // count, -1)
    ranks_D11 = np.arange(comm.size)[:, None, None]
    to_DTk = rank_Tk == ranks_D11
    ranks, tokens = np.nonzero(to_DTk.any(axis=2))
    local_Nk = np.where(to_DTk[ranks, tokens], experts_Tk[tokens] % num_local, -1)
    places = np.full((comm.size, len(experts_Tk)), len(tokens), np.int64)
    places[ranks, tokens] = np.arange(len(tokens))
    sent = np.bincount(ranks, minlength=comm.size)
    counts = comm.all_gather(paddle.to_tensor(sent[None].astype(np.int64))).numpy()
    local = comm.all_to_all(paddle.to_tensor(local_Nk.astype(np.int64)), counts)
    if not local.shape[0]:
        local = paddle.full([1, experts_Tk.shape[1]], -1, "int64")
    return DispatchPlan(comm, paddle.to_tensor(tokens), [paddle.to_tensor(place) for place in places], counts, local)


class _Dispatch(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: DispatchPlan) -> Tensor:
        ctx.plan = plan
        return plan.dispatch(x.detach())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ctx.plan.combine(dy.detach())


class _Combine(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, y: Tensor, plan: DispatchPlan) -> Tensor:
        ctx.plan = plan
        return plan.combine(y.detach())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ctx.plan.dispatch(dy.detach())


def dispatch(x: Tensor, plan: DispatchPlan) -> Tensor:
    """:meth:`DispatchPlan.dispatch` with its gradient."""
    y: Tensor = _Dispatch.apply(x, plan)
    return y


def combine(y: Tensor, plan: DispatchPlan) -> Tensor:
    """:meth:`DispatchPlan.combine` with its gradient."""
    x: Tensor = _Combine.apply(y, plan)
    return x


def run_experts(layer: Any, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor, plan: DispatchPlan) -> Tensor:
    """[T, H]: outputs of ``layer(x, experts, weights)`` on all ranks for the local tokens. Tokens and weights are sent in one
    message, so ranks need not agree on an order."""
    joined = paddle.concat([x_TH, weights_Tk.astype(x_TH.dtype)], axis=1)
    there = dispatch(joined, plan)
    size = x_TH.shape[1]
    # what is kept for recomputation loses the strides of a view
    x_RH, weights_Rk = there[:, :size].contiguous(), there[:, size:].contiguous()
    return combine(layer(x_RH, plan.local, weights_Rk), plan)


class ShardedExperts:
    """Stacked experts of which this rank has a shard. The other shards are on ranks with different sequences and, with tensor
    parallelism, on ranks with the same ones. A layer with parameters of the style ``expert`` is called with (x [T, H],
    experts [T, k], weights [T, k]), -1 for no expert, and sums over k."""

    tensor_shard: Shard
    holders: Comm
    num_local: int

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """[T, H]: the weighted sum of the experts' outputs per token."""
        shard = self.tensor_shard
        x_TH, experts_Tk, weights_Tk = shard.enter(x_TH), shard.gathered(experts_Tk), shard.enter(weights_Tk)
        subgroup = shard.comm.index, shard.comm.size
        plan = plan_dispatch(experts_Tk.numpy(), self.num_local, self.holders, subgroup)
        if isinstance(self, SourcedExperts):
            self.expect_tokens(plan.sources(), self.holders.size)
        return shard.leave(run_experts(super().forward, x_TH, experts_Tk, weights_Tk, plan))  # type: ignore[misc]


def shard_experts(model: Any, layout: Layout, holders: Comm, cut: Comm, shard: Shard) -> list[str]:
    """Shard every stack of experts in place; returns the names of the parameters that are sharded along the first axis.

    Args:
        holders: the ranks with different sequences. cut: those and the tensor-parallel ranks of ``shard``.
    Raises:
        ConfigError: a number of experts that the ranks cannot divide.
    """
    names: list[str] = []
    key = "parallel.expert" if holders.size > 1 else "parallel.tensor"
    for stack in list(find_stacks(model, layout)):
        owned = {name: (parameter, 0) for name, parameter in stack.parameters.items()}
        for name, number in stack.weights.items():
            if number % cut.size:
                raise ConfigError.at(key, f"{cut.size} ranks cannot share the {number} experts of {stack.name}")
            owned |= tensors_of(stack.layer, name, 0, cut, key)
        for tensor, axis in owned.values():
            keep_shard(tensor, axis, cut)
        names += owned
        more: dict[str, Any] = {"tensor_shard": shard, "holders": holders, "num_local": number // cut.size}
        replaced(model, stack.name, derived(stack.layer, ShardedExperts, **more))
    return names


class Stack(NamedTuple):
    """A layer of experts: its parameters by name, including those of adapters, and the number of experts of each of its own
    weights, packed or not."""

    name: str
    layer: nn.Layer
    parameters: dict[str, Tensor]
    weights: dict[str, int]


def find_stacks(model: Any, layout: Layout) -> Iterator[Stack]:
    """Every stack of experts. Raises ``PluginError`` if a layer of experts is not an ``ExpertLayer``."""
    parameters = dict(model.named_parameters())
    counts = {name: parameter.shape[0] for name, parameter in parameters.items()}
    counts |= {name: shape[0] for name, _, shape in packed_names(model)}
    owners = {name.rpartition(".")[0] for name in counts if layout.style(name) == "expert"}
    for name, layer in model.named_sublayers():
        if name in owners:
            if not isinstance(layer, ExpertLayer):
                raise PluginError(
                    "the layout calls these weights experts, and their layer is no ExpertLayer",
                    where=name,
                    found=type(layer).__name__,
                )
            below = {n: p for n, p in parameters.items() if n.startswith(f"{name}.")}
            yield Stack(name, layer, below, {n: c for n, c in counts.items() if n.rpartition(".")[0] == name})
