"""ERNIE 4.5 with mixtures of experts as a causal language model: the dense model with another stack of layers, router
losses, expert balancing and multi-token prediction.

Letters: B batch, S new positions, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import paddle  # noqa: TID253
from erniecore_ernie45.context import Context
from erniecore_ernie45.layers import DecoderLayer
from erniecore_ernie45.model import Ernie45ForCausalLM, run_layer
from paddle import Tensor  # noqa: TID253

from erniecore.api.experts import LoadReduction
from erniecore.api.layers import child
from erniecore.api.model import Cache, ElasticSizes, Features
from erniecore_ernie45_moe.architecture import MoeArchitecture
from erniecore_ernie45_moe.balance import Balancer, Measured
from erniecore_ernie45_moe.config import RouterSection
from erniecore_ernie45_moe.layers import MoeBlock, MoeDecoderLayer, loss_coefficients
from erniecore_ernie45_moe.mtp import MoeDecoder
from erniecore_ernie45_moe.spread import Spreader

if TYPE_CHECKING:
    from erniecore.api.decoding import DecoderPlan


class Ernie45MoeForCausalLM(Ernie45ForCausalLM):
    """The mixture-of-experts model; implements ``erniecore.api.model.CausalLM``.

    Attributes:
        arch: sizes. balancer: expert loads since the last optimizer step. spreader: the decoupled orthogonal loss.
    """

    arch: MoeArchitecture

    def __init__(
        self,
        arch: MoeArchitecture,
        config: RouterSection,
        make_decoder: Callable[[], MoeDecoder] | None = None,
        *,
        dtype: str = "float32",
    ) -> None:
        """``make_decoder``: builds another stack of layers than that of the text models."""
        super().__init__(arch, make_decoder or (lambda: MoeDecoder(arch, config)), dtype=dtype)
        self.coefficients = {name: value for name, value in loss_coefficients(config).items() if value > 0}
        self.balancer = Balancer(config.bias_update_rate if arch.aux_free else 0.0)
        decoupled = config.router_orthogonal_decoupled
        self.spreader = Spreader(config.router_orthogonal_loss if decoupled else 0.0)

    def run(self, input_ids: Tensor, context: Context) -> Features:
        """Multi-token prediction, router losses and expert loads are computed in training only."""
        hidden_BSH, measured = self.model(input_ids, context)
        mtp_hidden: tuple[Tensor, ...] = ()
        if self.training and context.cache is None and paddle.is_grad_enabled():
            mtp_hidden, further = self.model.multi_token_prediction(hidden_BSH, input_ids, context)
            measured = [*measured, *further]
        routers: dict[int, Measured] = {place: entry for place, layer in enumerate(measured) for entry in layer}
        if routers:
            self.balancer.observe(routers)
        residual = None if context.cache is None else hidden_BSH
        return Features(self.model.norm(hidden_BSH), mtp_hidden, self._auxiliary(list(routers.values())), residual)

    def mtp_forward(
        self,
        residual: Tensor,
        next_ids: Tensor,
        *,
        position_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The first MTP layer while decoding; implements ``erniecore.api.MultiTokenPredictor``."""
        context = self.make_context(
            next_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            startend_row_indices=None,
            cache=cache,
        )
        hidden_BSH, *_ = run_layer(self.model.mtp_block[0], self.model.joined(0, residual, next_ids), context)
        return self.model.norm(hidden_BSH)

    def _auxiliary(self, routers: list[Measured]) -> dict[str, Tensor]:
        """Router losses summed over layers, times their coefficients."""
        if not routers:
            return {}
        return {
            name: coefficient * paddle.add_n([entry.losses[name] for entry in routers])
            for name, coefficient in self.coefficients.items()
        }

    def decoder_plan(self) -> DecoderPlan | None:
        """Implements ``erniecore.api.decoding.Planned``; prediction layers are no part of it."""
        from erniecore_ernie45.decoding import dense_block, plan_of

        from erniecore_ernie45_moe.decoding import routed_block

        layers = {DecoderLayer: dense_block, MoeDecoderLayer: routed_block}
        return plan_of(self, Ernie45MoeForCausalLM, layers)

    def blocks(self) -> Iterator[MoeBlock]:
        """The mixture-of-experts blocks that are here, in the order in which they run."""
        return iter(self._placed().values())

    def _placed(self) -> dict[int, MoeBlock]:
        """The blocks by their place among all layers."""
        layers = enumerate([*self.model.layers, *self.model.mtp_block])
        found = {place: child(layer, "mlp") for place, layer in layers}
        return {place: block for place, block in found.items() if isinstance(block, MoeBlock)}

    def after_step(self, *, rate: float = 0.0) -> None:
        """Move the selection biases towards an even load, and the routers' vectors apart where that is decoupled from the
        optimizer; what belongs to a frozen router stays."""
        blocks = self._placed()
        self.balancer.step(
            {
                place: (block.moe_statics.e_score_correction_bias, [not gate.stop_gradient for gate in block.routers()])
                for place, block in blocks.items()
            }
        )
        routers = [gate for block in blocks.values() for gate in block.routers()]
        self.spreader.step(routers, rate, self.balancer.reduction)

    def reduce_loads(self, reduction: LoadReduction) -> None:
        """Expert loads are counted over the tokens of all ranks; implements ``erniecore.api.model.BalancedModel``."""
        self.balancer.reduction = reduction

    def elastic_sizes(self) -> ElasticSizes | None:
        """Layers, experts, and experts per token."""
        arch = self.arch
        rows = arch.num_hidden_layers + arch.num_mtp_layers
        return ElasticSizes(arch.num_hidden_layers, arch.num_experts, arch.num_selected, rows)

    def expert_loads(self) -> Tensor | None:
        """Of the last step; rows of dense layers are 0."""
        sizes, reduction = self.elastic_sizes(), self.balancer.reduction
        if sizes is None:
            return None
        none, loads = paddle.zeros([sizes.experts]), self.balancer.last_loads
        found = paddle.stack([loads[place][0] if place in loads else none for place in range(sizes.rows)])
        if reduction is None or not reduction.splits_layers:
            return found
        return reduction.gather_layers(found.reshape([1, -1])).sum(axis=0).reshape(found.shape)

    def router_metrics(self) -> dict[str, float]:
        """Metrics of the last optimizer step."""
        return {**self.balancer.metrics(), **self.spreader.metrics()}
