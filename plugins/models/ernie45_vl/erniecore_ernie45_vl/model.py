"""ERNIE 4.5 VL as a causal language model that also reads images and videos: the mixture-of-experts text model with a
vision tower before it, and experts of their own for vision tokens. What images need of any model is ``seeing_model.py``.

Letters: B batch, S new positions, H hidden, M tokens of images.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle  # noqa: TID253
from erniecore_ernie45.context import Context
from erniecore_ernie45.model import default_dtype
from erniecore_ernie45_moe.config import RouterSection
from erniecore_ernie45_moe.model import Ernie45MoeForCausalLM
from erniecore_ernie45_moe.mtp import MoeDecoder
from paddle import Tensor  # noqa: TID253

from erniecore.api import ops
from erniecore.api.parallel import ShardedIds
from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.layers import VlContext, make_layer
from erniecore_ernie45_vl.positions import IMAGE, VIDEO, Grid, Ints, routed_as_vision
from erniecore_ernie45_vl.resampler import Resampler
from erniecore_ernie45_vl.seeing_model import SeeingContext, SeeingModel, VisionInputs
from erniecore_ernie45_vl.vision import VisionTower


class VlDecoder(MoeDecoder):
    """The stack of layers, and the resampler, which files keep below it."""

    def __init__(self, arch: VlArchitecture, config: RouterSection) -> None:
        super().__init__(arch, config, make_layer)
        self.resampler_model = Resampler(arch)

    def embed(self, input_ids: Tensor, context: Context) -> Tensor:
        """Token embeddings, with image embeddings in place of the placeholders."""
        x_BSH = super().embed(input_ids, context)
        return context.put_images(x_BSH) if isinstance(context, SeeingContext) else x_BSH


class Ernie45VlForConditionalGeneration(SeeingModel, Ernie45MoeForCausalLM):
    """The vision-language model; implements ``erniecore.api.model.CausalLM`` with further inputs. New models have their vision
    part frozen: see :meth:`train_vision`."""

    vl: VlArchitecture

    def __init__(self, arch: VlArchitecture, config: RouterSection, *, dtype: str = "float32") -> None:
        Ernie45MoeForCausalLM.__init__(self, arch, config, lambda: VlDecoder(arch, config), dtype=dtype)
        self.vl = arch
        with default_dtype(dtype):
            self.vision_model = VisionTower(arch)
        self.train_vision(False)

    def train_vision(self, on: bool) -> None:
        """Whether tower, resampler, vision routers and vision experts are trained. Batches of text reach none of them."""
        for name, parameter in self.named_parameters():
            if is_vision(name):
                parameter.stop_gradient = not on

    def see(
        self,
        context: Context,
        seen: VisionInputs,
        ids_BS: Ints,
        kinds_BS: Ints,
        images: Tensor | None,
        places: Tensor | None,
        rows: ShardedIds | None,
    ) -> SeeingContext:
        """Also which tokens go to the vision experts."""
        given, markers = seen.moe_mm_token_type_ids, self.vl.markers
        begins, ends = (markers.image_start, markers.video_start), (markers.image_end, markers.video_end)
        routed_BS = routed_as_vision(ids_BS, kinds_BS, begins, ends) if given is None else given.numpy() != 0
        here_BS = routed_BS if rows is None else rows.own(routed_BS)
        return VlContext.of(context, vision=paddle.to_tensor(here_BS), images=images, places=places)

    def axes(self) -> Sequence[int]:
        """Height and width in turns, the last pairs time."""
        return ops.axes_by_parity(self.arch.head_dim, self.vl.time_pairs)

    def encode_images(self, seen: VisionInputs, grids: dict[int, list[Grid]]) -> Tensor:
        """Tokens [M, H] of all images, then of all videos."""
        pixels = {IMAGE: seen.pixel_values, VIDEO: seen.pixel_values_videos}
        again = self.tower_again and any(not p.stop_gradient for p in self.vision_model.parameters())
        seen_by_kind = {kind: self.vision_model(pixels[kind], grids[kind], again=again) for kind in grids}
        return paddle.concat([self.model.resampler_model(seen_by_kind[kind], grids[kind]) for kind in grids])


#: parts of the names of parameters that are used for images only
VISION_PARTS = ("vision_model.", ".resampler_model.", ".vision_experts.", ".gate.weight_1")


def is_vision(name: str) -> bool:
    """Whether this parameter is used for images only."""
    return any(part in name for part in VISION_PARTS)
