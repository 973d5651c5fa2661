"""A decoder layer whose MLP is a mixture of experts. Routing, losses and balancing are pure functions elsewhere.

Letters: B batch, S positions, T = B S tokens, H hidden, E experts, k selected experts, I width of an expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import paddle  # noqa: TID253
from erniecore_ernie45.context import Context
from erniecore_ernie45.layers import MLP, DecoderLayer, normal
from erniecore_ernie45.submodel import Submodel
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore.api.experts import ExpertChoices, SequenceShard, WholeSequences
from erniecore_ernie45_moe.architecture import MoeArchitecture
from erniecore_ernie45_moe.balance import Measured
from erniecore_ernie45_moe.config import RouterSection
from erniecore_ernie45_moe.losses import (
    aux_loss,
    orthogonal_loss,
    router_entropy,
    sequence_loss,
    similarity_loss,
    z_loss,
)
from erniecore_ernie45_moe.router import Routing, drop_over_capacity, hide_padding, loads, loads_by_kind, route


class Gate(nn.Layer):  # type: ignore[misc]
    """The router's weight [H, E], float32 in every model."""

    def __init__(self, arch: MoeArchitecture) -> None:
        super().__init__()
        shape = [arch.hidden_size, arch.num_experts]
        self.weight = self.create_parameter(shape, attr=normal(arch), dtype="float32")


class Statics(nn.Layer):  # type: ignore[misc]
    """The selection bias [routers, E], float32: part of the model's state, moved by ``Balancer``, never by an optimizer."""

    def __init__(self, arch: MoeArchitecture, num_routers: int = 1) -> None:
        super().__init__()
        shape, zero = [num_routers, arch.num_experts], nn.initializer.Constant(0.0)
        self.e_score_correction_bias = self.create_parameter(shape, dtype="float32", default_initializer=zero)
        self.e_score_correction_bias.stop_gradient = True


class Experts(nn.Layer):  # type: ignore[misc]
    """All routed experts, stacked: gate_proj and up_proj [E, H, I], down_proj [E, I, H]. They have no biases."""

    def __init__(self, arch: MoeArchitecture) -> None:
        super().__init__()
        experts, hidden, width = arch.num_experts, arch.hidden_size, arch.expert_size
        self.gate_proj = self._matrices(arch, [experts, hidden, width])
        self.up_proj = self._matrices(arch, [experts, hidden, width])
        self.down_proj = self._matrices(arch, [experts, width, hidden])

    def _matrices(self, arch: MoeArchitecture, shape: list[int]) -> Any:
        return self.create_parameter(shape, attr=normal(arch), dtype=paddle.get_default_dtype())

    def expert_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(stack.shape) for name, stack in self.named_parameters(include_sublayers=False)}

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """Weighted sum [T, H] of the selected experts' outputs."""
        return ops.grouped_swiglu(x_TH, self.gate_proj, self.up_proj, self.down_proj, experts_Tk, weights_Tk)


class Reduced(NamedTuple):
    """What a pass has of one layer: ``experts`` int64 [m], ascending, None: all; experts per token, None: as usual."""

    experts: Tensor | None
    num_selected: int | None

    def numbered(self, routing: Routing) -> Routing:
        """Places among these experts -> numbers among all; -1 stays."""
        if self.experts is None:
            return routing
        numbers = paddle.index_select(self.experts, routing.experts.flatten().clip(min=0)).reshape(
            routing.experts.shape
        )
        return routing._replace(experts=paddle.where(routing.experts >= 0, numbers, routing.experts))


def reduced_of(submodel: Submodel, place: int) -> Reduced:
    """What a pass through ``submodel`` has of the layer at ``place``."""
    experts = None if submodel.experts is None else submodel.experts[place]
    return Reduced(experts, submodel.num_selected)


class MoeBlock(nn.Layer):  # type: ignore[misc]
    """Router, routed experts, and the shared experts as one MLP that every token passes.

    Attributes:
        rows: how statistics see the positions that other ranks have.
        num_routers: each for its own tokens and its own ``arch.num_experts`` experts.
        choices: see ``erniecore.api.experts.ReplayedRouter``.
    """

    rows: SequenceShard = WholeSequences()
    num_routers = 1
    choices: ExpertChoices | None = None

    def __init__(self, arch: MoeArchitecture, config: RouterSection) -> None:
        super().__init__()
        self.arch, self.capacity = arch, config.capacity
        self.trained_losses = frozenset(name for name, value in loss_coefficients(config).items() if value > 0)
        self.gate = Gate(arch)
        self.moe_statics = Statics(arch, self.num_routers)
        self.experts = Experts(arch)
        shared = arch.num_shared_experts * arch.expert_size
        self.shared_experts = MLP(arch, shared) if shared else None

    def forward(
        self, x_BSH: Tensor, real_BS: Tensor | None, reduced: Reduced | None = None, kinds_BSM: Tensor | None = None
    ) -> tuple[Any, ...]:
        """[B, S, H] -> the same, and in training what the router did, unless it is ``reduced``.

        Args:
            real_BS: false at padding, or None.
            kinds_BSM: float32, 1 at the kind of each token, for loads by kind; the router knows nothing of kinds.
        """
        x_TH = x_BSH.reshape([-1, self.arch.hidden_size])
        real_T = None if real_BS is None else self.rows.own(real_BS).reshape([-1])
        routing = hide_padding(self.route(x_TH) if reduced is None else self.route_reduced(x_TH, reduced), real_T)
        kept = self.keep(routing)
        if reduced is not None:
            kept = reduced.numbered(kept)
        y_BSH = self.experts(x_TH, kept.experts, kept.weights).reshape(x_BSH.shape)
        if self.shared_experts is not None:
            y_BSH = y_BSH + self.shared_experts(x_BSH)
        if reduced is None and self.training and paddle.is_grad_enabled():
            rows = x_BSH.shape[0]
            measured = self.measure(*self.whole(routing, real_T, rows), num_rows=rows)
            if kinds_BSM is not None:
                kinds_TM = kinds_BSM.reshape([-1, kinds_BSM.shape[-1]])
                measured = measured._replace(kind_loads=loads_by_kind(routing.experts, kinds_TM, self.arch.num_experts))
            return y_BSH, measured
        return (y_BSH,)

    def shard_sequences(self, shard: SequenceShard) -> None:
        """Router statistics see whole sequences; see ``erniecore.api.model.SequenceStatistics``."""
        if self.capacity:
            raise ValueError("a capacity counts the tokens of whole rows; leave model.capacity empty")
        self.rows = shard

    def whole(self, routing: Routing, real_T: Tensor | None, num_rows: int) -> tuple[Routing, Tensor | None]:
        """Of all positions of the rows."""
        if isinstance(self.rows, WholeSequences):
            return routing, real_T

        def joined(values_Tn: Tensor) -> Tensor:
            return self.rowwise(values_Tn, num_rows, self.rows.joined)

        real = None if real_T is None else joined(real_T.unsqueeze(-1).astype("int32")).squeeze(-1).astype("bool")
        return Routing(*(joined(values) for values in routing)), real

    def route(self, x_TH: Tensor) -> Routing:
        """Where each token goes; nothing dropped yet."""
        return self.route_by(x_TH, 0)

    def route_by(self, x_TH: Tensor, router: int) -> Routing:
        """Where each token goes by one of the routers."""
        arch, bias_1E = self.arch, self.moe_statics.e_score_correction_bias[router : router + 1]
        choices = self.choices if router == 0 else None
        given_Tk = choices.given if choices is not None and (self.training or choices.always) else None
        if choices is not None and given_Tk is not None:
            given_Tk = self.rowwise(given_Tk, choices.sequences, self.rows.cut)
        routing = route(
            x_TH,
            self.routers()[router],
            bias_1E,
            num_selected=arch.num_selected,
            norm_min=arch.norm_min,
            scoring=arch.scoring,
            given_Tk=given_Tk,
        )
        if choices is not None:
            choices.taken = self.rowwise(routing.experts, choices.sequences, self.rows.joined)
        return routing

    @staticmethod
    def rowwise(values_Tn: Tensor, num_rows: int, change: Callable[[Tensor], Tensor]) -> Tensor:
        """[T, n] -> [T', n]: of other positions of each of the rows."""
        size = values_Tn.shape[-1]
        return change(values_Tn.reshape([num_rows, -1, size])).reshape([-1, size])

    def route_reduced(self, x_TH: Tensor, reduced: Reduced) -> Routing:
        """Where each token goes among fewer experts, by their place among these, as a router that has no others; with a choice
        of experts without the selection bias, which balances all of them."""
        arch, gate_HE, bias_1E = self.arch, self.gate.weight, self.moe_statics.e_score_correction_bias
        if reduced.experts is not None:
            gate_HE = paddle.index_select(gate_HE, reduced.experts, axis=1)
            bias_1E = paddle.zeros([1, gate_HE.shape[1]], "float32")
        k, floor = reduced.num_selected or arch.num_selected, arch.norm_min
        return route(x_TH, gate_HE, bias_1E, num_selected=k, norm_min=floor, scoring=arch.scoring)

    def routers(self) -> tuple[Tensor, ...]:
        """Weights [H, E], one for each row of the selection bias."""
        return (self.gate.weight,)

    def keep(self, routing: Routing) -> Routing:
        """What is left under the capacity; everything when there is none."""
        if not self.capacity:
            return routing
        tokens, experts = routing.scores.shape[0], routing.scores.shape[1] * self.num_routers
        training, evaluation, small = self.capacity
        factor = training if self.training else evaluation if tokens >= experts else small
        return drop_over_capacity(routing, math.floor(factor * tokens / experts), self.arch.norm_min)

    def measure(self, routing: Routing, real_T: Tensor | None, router: int = 0, *, num_rows: int = 1) -> Measured:
        """Load [1, E], entropy and the losses that are trained with."""
        scores, chosen = routing.scores, self.arch.num_selected
        losses = {
            "aux": lambda: aux_loss(scores, chosen, real_T),
            "sequence": lambda: sequence_loss(scores, chosen, num_rows, real_T),
            "z": lambda: z_loss(routing.logits, real_T),
            "orthogonal": lambda: self.rows.common(orthogonal_loss(self.routers()[router])),
            "similarity": lambda: self.rows.common(similarity_loss(self.routers()[router])),
        }
        load_1E = loads(routing.experts, self.arch.num_experts).unsqueeze(0)
        entropy = router_entropy(routing.scores.detach(), real_T)
        return Measured(load_1E, entropy, {name: losses[name]() for name in losses if name in self.trained_losses})


class MoeDecoderLayer(DecoderLayer):
    """Attention and a mixture of experts, each after a norm and added to the stream."""

    def forward(self, x_BSH: Tensor, context: Context) -> tuple[Any, ...]:
        """The stream after this layer, and in training what the router did."""
        x_BSH = self.attend(x_BSH, context)
        normed_BSH = self.post_attention_layernorm(x_BSH)
        with ops.rematerialized(normed_BSH, lambda: self.post_attention_layernorm(x_BSH)):
            y_BSH, *measured = self.mix(normed_BSH, context)
        return (self.residual(x_BSH, y_BSH), *measured)

    def mix(self, normed_BSH: Tensor, context: Context) -> tuple[Any, ...]:
        """The mixture of experts, and in training what its routers did."""
        if context.submodel is None:
            mixed: tuple[Any, ...] = self.mlp(normed_BSH, context.real)
        else:
            mixed = self.mlp(normed_BSH, context.real, reduced_of(context.submodel, self.self_attn.index))
        return mixed


def make_layer(arch: MoeArchitecture, config: RouterSection, index: int, *, like: int | None = None) -> DecoderLayer:
    """Layer ``index``, dense or a mixture of experts like layer ``like`` (by default: as its own place says)."""
    if arch.is_moe(index if like is None else like):
        return MoeDecoderLayer(arch, index, MoeBlock(arch, config))
    return DecoderLayer(arch, index)


def loss_coefficients(config: RouterSection) -> dict[str, float]:
    """Losses that are trained with, by the names that ``MoeBlock.measure`` gives them; not the decoupled one."""
    return {
        "aux": config.router_aux_loss,
        "sequence": config.router_sequence_loss,
        "z": config.router_z_loss,
        "similarity": config.router_similarity_loss,
        "orthogonal": 0.0 if config.router_orthogonal_decoupled else config.router_orthogonal_loss,
    }
