"""Expert parallelism: the ranks of a group hold different experts of every stack; tokens travel to the ranks that hold
their experts and the results travel back. Nothing is dropped and nothing is padded to a capacity.

A token is sent once to each rank that holds one of its experts, with its weights for them; there the layer computes as on
one device, so whatever stands in its place (an adapter's, a kernel's) works alike. Every rank of the group takes part in
every pass, also with nothing to send.

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
from erniecore.api.layers import derived, replaced
from erniecore.api.parallel import ExpertLayer, Layout, SourcedExperts
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.quantized import packed_names, tensors_of
from erniecore_hybrid_parallel.tensor import Shard, keep_part


class Journey(NamedTuple):
    """Who sends what in one pass of one layer.

    Attributes:
        tokens: int64 [N], token of each row sent, by rank. places: per rank, the row of each token [T]; N where it has none.
        counts: [D, D], rows from each rank (first axis) to each.
        local: int64 [max(R, 1), k], experts of the rows that came, numbered as here; -1 for those of other ranks.
    """

    comm: Comm
    tokens: Tensor
    places: list[Tensor]
    counts: NDArray[np.int64]
    local: Tensor

    @property
    def sent(self) -> int:
        """N."""
        return int(self.counts[self.comm.index].sum())

    @property
    def received(self) -> int:
        """R."""
        return int(self.counts[:, self.comm.index].sum())

    def sources(self) -> Tensor:
        """int64 [max(R, 1)]: whose each row that came is, by its place in the group."""
        counts = self.counts[:, self.comm.index]
        return paddle.to_tensor(
            np.repeat(np.arange(self.comm.size), counts) if self.received else np.zeros(1, np.int64)
        )

    def go(self, x: Tensor) -> Tensor:
        """Rows [T, ...] of tokens -> rows [max(R, 1), ...] where their experts are; a row of zeros where none came."""
        rows = paddle.gather(x, self.tokens) if self.sent else paddle.empty([0, *x.shape[1:]], x.dtype)
        there = self.comm.all_to_all(rows, self.counts)
        return there if self.received else paddle.zeros([1, *x.shape[1:]], x.dtype)

    def back(self, y: Tensor) -> Tensor:
        """The adjoint of :meth:`go`: rows [max(R, 1), H] from where the experts are -> their sums by token [T, H]."""
        rows = self.comm.all_to_all(y[: self.received], self.counts.T)
        padded = paddle.concat([rows, paddle.zeros([1, *y.shape[1:]], y.dtype)])
        total = paddle.gather(padded, self.places[0])
        for place in self.places[1:]:
            total = total + paddle.gather(padded, place)
        return total


def plan_journey(experts_Tk: NDArray[Any], num_local: int, comm: Comm, part: tuple[int, int] = (0, 1)) -> Journey:
    """Which token goes where.

    Args:
        experts_Tk: -1 for none. num_local: experts of a rank.
        part: (this rank's place, number) among the ranks that divide the experts of a rank of ``comm`` further: all of
            them have these tokens, and each sends what is for its own part of the experts.
    """
    index, count = part
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
    return Journey(comm, paddle.to_tensor(tokens), [paddle.to_tensor(place) for place in places], counts, local)


class _Go(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, journey: Journey) -> Tensor:
        ctx.journey = journey
        return journey.go(x.detach())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ctx.journey.back(dy.detach())


class _Back(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, y: Tensor, journey: Journey) -> Tensor:
        ctx.journey = journey
        return journey.back(y.detach())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ctx.journey.go(dy.detach())


def go(x: Tensor, journey: Journey) -> Tensor:
    """:meth:`Journey.go` with its gradient."""
    y: Tensor = _Go.apply(x, journey)
    return y


def back(y: Tensor, journey: Journey) -> Tensor:
    """:meth:`Journey.back` with its gradient."""
    x: Tensor = _Back.apply(y, journey)
    return x


def visited(layer: Any, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor, journey: Journey) -> Tensor:
    """[T, H]: what ``layer(x, experts, weights)`` of all ranks gives for the tokens here. Tokens and weights travel as one
    message, so that the ranks need not agree on an order."""
    joined = paddle.concat([x_TH, weights_Tk.astype(x_TH.dtype)], axis=1)
    there = go(joined, journey)
    size = x_TH.shape[1]
    # what is kept for recomputation loses the strides of a view
    x_RH, weights_Rk = there[:, :size].contiguous(), there[:, size:].contiguous()
    return back(layer(x_RH, journey.local, weights_Rk), journey)


class SpreadExperts:
    """Stacked experts of which this rank has some, the others being with ranks that see other rows and, where matrices are
    cut too, with those that see the same ones. A layer with parameters of the style ``expert`` is called with (x [T, H],
    experts [T, k], weights [T, k]), -1 for no expert, and sums over k."""

    tensor_shard: Shard
    holders: Comm
    num_local: int

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """[T, H]."""
        shard = self.tensor_shard
        x_TH, experts_Tk, weights_Tk = shard.enter(x_TH), shard.gathered(experts_Tk), shard.enter(weights_Tk)
        part = shard.comm.index, shard.comm.size
        journey = plan_journey(experts_Tk.numpy(), self.num_local, self.holders, part)
        if isinstance(self, SourcedExperts):
            self.expect_tokens(journey.sources(), self.holders.size)
        return shard.leave(visited(super().forward, x_TH, experts_Tk, weights_Tk, journey))  # type: ignore[misc]


def spread_experts(model: Any, layout: Layout, holders: Comm, cut: Comm, shard: Shard) -> list[str]:
    """Leave this rank its part of every stack, in place; returns the names of what was cut along the first axis.

    Args:
        holders: the ranks that see different rows. cut: those and the ones of ``shard``, which share
            their matrices.
    Raises:
        ConfigError: a number of experts that the ranks cannot divide.
    """
    names: list[str] = []
    key = "parallel.expert" if holders.size > 1 else "parallel.tensor"
    for stack in list(find_stacks(model, layout)):
        held = {name: (parameter, 0) for name, parameter in stack.parameters.items()}
        for name, number in stack.weights.items():
            if number % cut.size:
                raise ConfigError.at(key, f"{cut.size} ranks cannot share the {number} experts of {stack.name}")
            held |= tensors_of(stack.layer, name, 0, cut, key)
        for tensor, axis in held.values():
            keep_part(tensor, axis, cut)
        names += held
        more: dict[str, Any] = {"tensor_shard": shard, "holders": holders, "num_local": number // cut.size}
        replaced(model, stack.name, derived(stack.layer, SpreadExperts, **more))
    return names


class Stack(NamedTuple):
    """A layer of experts: its parameters by name, with what an adapter adds below, which goes with its experts; and of its own
    weights, packed or not, the number of experts."""

    name: str
    layer: nn.Layer
    parameters: dict[str, Tensor]
    weights: dict[str, int]


def find_stacks(model: Any, layout: Layout) -> Iterator[Stack]:
    """Every stack of experts. Raises ``PluginError`` where their layer is no ``ExpertLayer``."""
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
