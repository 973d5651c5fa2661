"""A decoder layer whose routed experts come in two kinds: tokens of text go to one, tokens of images to the other, each
by its own router. Everything else of a layer is shared. Batches of text alone take the path of the text model.

Letters: B batch, S positions, T = B S tokens, H hidden, E experts of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import paddle  # noqa: TID253
from erniecore_ernie45.context import Context
from erniecore_ernie45.layers import DecoderLayer, normal
from erniecore_ernie45_moe.balance import Measured
from erniecore_ernie45_moe.config import RouterSection
from erniecore_ernie45_moe.layers import Experts, MoeBlock, MoeDecoderLayer
from erniecore_ernie45_moe.router import hide_padding
from paddle import Tensor  # noqa: TID253

from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.seeing_model import SeeingContext


@dataclass(frozen=True, slots=True)
class VlContext(SeeingContext):
    """What layers share.

    Attributes:
        vision: bool [B, S], true at tokens that go to the vision experts; None: there are none.
    """

    vision: Tensor | None = None


class VlBlock(MoeBlock):
    """The mixture of experts of the text model, and beside it a router (``gate.weight_1``, the second row of the selection
    bias) and experts for vision tokens."""

    num_routers = 2

    def __init__(self, arch: VlArchitecture, config: RouterSection) -> None:
        super().__init__(arch, config)
        shape = [arch.hidden_size, arch.num_experts]
        self.gate.weight_1 = self.gate.create_parameter(shape, attr=normal(arch), dtype="float32")
        self.vision_experts = Experts(replace(arch, expert_size=arch.vision_expert_size))

    def forward(  # type: ignore[override]
        self, x_BSH: Tensor, real_BS: Tensor | None, vision_BS: Tensor | None = None
    ) -> tuple[Any, ...]:
        """[B, S, H] -> the same, and in training what the routers did. ``vision_BS``: true at vision tokens, or None."""
        if vision_BS is None:
            return self._texts(x_BSH, real_BS)
        text_BS = paddle.logical_not(vision_BS)
        if real_BS is not None:
            text_BS, vision_BS = paddle.logical_and(text_BS, real_BS), paddle.logical_and(vision_BS, real_BS)
        y_BSH, *text = super().forward(x_BSH, text_BS)
        x_TH, vision_T = x_BSH.reshape([-1, self.arch.hidden_size]), self.rows.own(vision_BS).reshape([-1])
        routing = hide_padding(self.route_by(x_TH, 1), vision_T)
        kept = self.keep(routing)
        y_BSH = y_BSH + self.vision_experts(x_TH, kept.experts, kept.weights).reshape(x_BSH.shape)
        if not text:
            return (y_BSH,)
        rows = x_BSH.shape[0]
        whole, real_T = self.whole(routing, vision_T, rows)
        return (y_BSH, joined(text[0], super().measure(whole, real_T, 1, num_rows=rows)))

    def _texts(self, x_BSH: Tensor, real_BS: Tensor | None) -> tuple[Any, ...]:
        """A batch without images. Where the vision experts are spread over ranks, those of other ranks may be asked for, so all
        ranks call them, here for no token."""
        y_BSH, *text = super().forward(x_BSH, real_BS)
        shapes = self.vision_experts.expert_shapes().values()
        if all(shape[0] == self.arch.num_experts for shape in shapes):
            return (y_BSH, *text)
        x_TH = x_BSH.reshape([-1, self.arch.hidden_size])
        none_T = paddle.zeros([x_TH.shape[0]], "bool")
        kept = self.keep(hide_padding(self.route_by(x_TH, 1), none_T))
        y_BSH = y_BSH + self.vision_experts(x_TH, kept.experts, kept.weights).reshape(x_BSH.shape)
        return (y_BSH, *text)

    def routers(self) -> tuple[Tensor, ...]:
        """Of text, of vision."""
        return self.gate.weight, self.gate.weight_1

    def measure(self, *args: Any, **options: Any) -> Measured:
        """Of text; no vision token was seen."""
        text = super().measure(*args, **options)
        return text._replace(load=paddle.concat([text.load, paddle.zeros_like(text.load)]))


def joined(text: Measured, vision: Measured) -> Measured:
    """What both routers did: losses add up, the entropy is that of text."""
    load_GE = paddle.concat([text.load[:1], vision.load])
    return Measured(load_GE, text.entropy, {name: text.losses[name] + vision.losses[name] for name in text.losses})


class VlDecoderLayer(MoeDecoderLayer):
    """Attention and a mixture of two kinds of experts."""

    def mix(self, normed_BSH: Tensor, context: Context) -> tuple[Any, ...]:
        mixed: tuple[Any, ...] = self.mlp(
            normed_BSH, context.real, context.vision if isinstance(context, VlContext) else None
        )
        return mixed


def make_layer(arch: VlArchitecture, config: RouterSection, index: int) -> DecoderLayer:
    """Layer ``index``, dense or with experts."""
    if arch.is_moe(index):
        return VlDecoderLayer(arch, index, VlBlock(arch, config))
    return DecoderLayer(arch, index)
