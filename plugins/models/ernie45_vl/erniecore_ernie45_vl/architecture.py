"""What a config.json says about an ERNIE 4.5 vision-language model, on top of the keys of its text part. No paddle, no
numpy. Numbers that exist once for text and once for vision are lists of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from erniecore_ernie45.architecture import MOST_LAYERS, Architecture, Keys, decoder_fields, read_source
from erniecore_ernie45_moe.architecture import MTP_KEY, MoeArchitecture, moe_fields

from erniecore.api import Json
from erniecore.api.model import DecoderShape, LayerShape, VisionShape
from erniecore_ernie45_vl.config import VlConfig
from erniecore_ernie45_vl.spelling import FLAT_TYPE, flat

#: keys that are lists of two, and what the decoder's layers are made from
PAIRS: Mapping[str, Callable[[tuple[int, int]], int]] = {
    "moe_num_experts": itemgetter(0),
    "moe_intermediate_size": itemgetter(0),
    "moe_layer_start_index": min,
    "moe_layer_end_index": max,
}
#: keys with a single supported value, by where they stand
ONLY_TEXT = {"rope_3d": True, "moe_use_hard_gate": True, "use_temporal_conv": True, "temporal_conv_size": 2}
ONLY_VISION = {"hidden_act": "quick_gelu", "temporal_merge_size": 2}


@dataclass(frozen=True)
class VisionArchitecture:
    """Sizes of the vision tower. ``merge``: a square of so many patches in each direction becomes one token."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    channels: int
    merge: int
    norm_eps: float

    @property
    def head_dim(self) -> int:
        """Of the tower's attention."""
        return self.hidden_size // self.num_heads

    @property
    def patch_values(self) -> int:
        """Numbers of a flattened patch."""
        return self.channels * self.patch_size**2

    @property
    def num_parameters(self) -> int:
        """Of the tower: embedding of patches, blocks with biases and two norms, final norm."""
        size, wide = self.hidden_size, self.intermediate_size
        block = 4 * (size + 1) * size + (size + 1) * wide + (wide + 1) * size + 4 * size
        return self.patch_values * size + self.depth * block + 2 * size

    def shape(self, joint: int, joints: str) -> VisionShape:
        """For the plan: of a block its two inputs, queries, keys, values, the result, factors of the norms, and what
        enters the activation of the MLP. ``joint``, ``joints``: see ``VisionShape``."""
        size, wide = self.hidden_size, self.intermediate_size
        block = 6 * size + wide + self.num_heads + 4
        ends, passing = 2 * size + 4 * self.head_dim, max(13 * size, 4 * (size + wide)) + self.head_dim
        return VisionShape(
            self.depth, size, block, ends, joint, max(joint, passing), self.merge**2, "vision_model.", joints
        )

    @property
    def merged_size(self) -> int:
        """Width of a square of patches side by side."""
        return self.hidden_size * self.merge**2


@dataclass(frozen=True)
class Markers:
    """Ids of the tokens that stand for images and videos and around them."""

    image: int
    video: int
    image_start: int
    image_end: int
    video_start: int
    video_end: int


@dataclass(frozen=True)
class SeeingArchitecture(Architecture):
    """Of any model that sees: a decoder, a vision tower, tokens that stand for images."""

    vision: VisionArchitecture
    markers: Markers


@dataclass(frozen=True)
class VlArchitecture(MoeArchitecture, SeeingArchitecture):
    """Sizes of a vision-language model. ``num_experts`` and ``expert_size`` are those of text; there are as many experts of
    width ``vision_expert_size`` for vision tokens. ``time_pairs``: rotary pairs that follow the time axis, the last ones."""

    vision_expert_size: int
    time_pairs: int

    def layer_shape(self, index: int) -> LayerShape:
        """Vision experts only lie in memory: the plan is one of rows of text."""
        text = super().layer_shape(index)
        return replace(text, idle=self.vision_expert_size) if self.is_moe(index) else text

    def shape(self) -> DecoderShape:
        """With the vision part."""
        routers = sum(map(self.is_moe, range(self.num_hidden_layers))) * (self.hidden_size + 1) * self.num_experts
        resampler = resampler_parameters(self.vision.merged_size, self.hidden_size)
        joint = 9 * self.vision.hidden_size + self.hidden_size // 2
        vision = self.vision.shape(joint, "model.resampler_model.")
        return replace(super().shape(), beside=self.vision.num_parameters + resampler + routers, vision=vision)

    @classmethod
    def parse(cls, source: Json, where: str = "config.json") -> VlArchitecture:
        """Raises ``CheckpointError`` for missing, impossible or contradictory keys."""
        keys = Keys(flat(source, where), where)
        text = Keys({**keys.source, **_of_text(keys)}, where)
        fields = {**decoder_fields(text, FLAT_TYPE), **moe_fields(text), "source": dict(keys.source)}
        for key, supported in ONLY_TEXT.items():
            keys.only(key, supported)
        return cls(
            **fields,
            vision=_vision(keys),
            vision_expert_size=_pair(keys, "moe_intermediate_size")[1],
            time_pairs=_time_pairs(keys, fields["head_dim"]),
            markers=_markers(keys),
        )


def resampler_parameters(width: int, hidden: int) -> int:
    """Of two steps of two matrices with biases and a norm each, and a projection with its norm."""
    first, square, norm = (2 * width + 1) * width, (width + 1) * width, 2 * width
    return 3 * square + first + 2 * norm + (width + 1) * hidden + hidden


def _of_text(keys: Keys) -> dict[str, Any]:
    """The pairs as the single numbers that layers are made from; a missing number of shared experts is none."""
    counts = _pair(keys, "moe_num_experts")
    if counts[0] != counts[1]:
        raise keys.fault("moe_num_experts", "as many experts for text as for vision are supported")
    single: dict[str, Any] = {}
    for key, choose in PAIRS.items():
        if isinstance(keys.source.get(key), (list, tuple)):
            pair = _pair(keys, key, minimum=-(10**6))
            single[key] = -1 if key == "moe_layer_end_index" and min(pair) < 0 else choose(pair)
    shared = keys.integer("moe_num_shared_experts", 0, minimum=0)
    return {**single, "moe_num_shared_experts": shared, MTP_KEY: 0}


def _pair(keys: Keys, key: str, *, minimum: int = 1) -> tuple[int, int]:
    """Two whole numbers: of text, of vision."""
    keys.required(key)
    value = keys.source[key]
    whole = isinstance(value, (list, tuple)) and all(type(n) is int and n >= minimum for n in value)
    if not whole or len(value) != 2:
        raise keys.fault(key, "not usable", expected=f"two whole numbers, {minimum} or more: of text, of vision")
    return value[0], value[1]


def _time_pairs(keys: Keys, head_dim: int) -> int:
    pairs = keys.integer("freq_allocation", minimum=0)
    if pairs > head_dim // 2 or (head_dim // 2 - pairs) % 2:
        expected = f"at most {head_dim // 2}, leaving as many pairs to height as to width"
        raise keys.fault("freq_allocation", f"impossible for a head of {head_dim}", expected=expected)
    return pairs


def _markers(keys: Keys) -> Markers:
    """Ids that files leave out are those of the ERNIE 4.5 vocabulary."""
    image = keys.integer("im_patch_id" if "im_patch_id" in keys.source else "image_token_id")
    return Markers(
        image=image,
        video=keys.integer("video_token_id", 103367),
        image_start=keys.integer("image_start_token_id", 101304),
        image_end=keys.integer("image_end_token_id", 101305),
        video_start=keys.integer("video_start_token_id", 101306),
        video_end=keys.integer("video_end_token_id", 101307),
    )


def _vision(outer: Keys) -> VisionArchitecture:
    inner = outer.source.get("vision_config")
    if not isinstance(inner, Mapping):
        raise outer.fault("vision_config", "not a mapping", expected="the keys of the vision tower")
    keys = Keys(inner, f"{outer.where}: vision_config")
    for key, supported in ONLY_VISION.items():
        keys.only(key, supported)
    hidden, heads = keys.integer("embed_dim" if "embed_dim" in inner else "hidden_size"), keys.integer("num_heads")
    if hidden % heads or (hidden // heads) % 4:
        raise keys.fault("num_heads", f"does not give heads of a multiple of 4 in a width of {hidden}")
    merge = keys.integer("spatial_merge_size", 2)
    for own, key, value in (
        (keys, "hidden_size", hidden),
        (outer, "pixel_hidden_size", hidden),
        (outer, "spatial_conv_size", merge),
    ):
        if own.source.get(key) not in (None, value):
            raise own.fault(key, "contradicts the vision tower", expected=str(value))
    return VisionArchitecture(
        depth=keys.integer("depth", maximum=MOST_LAYERS),
        hidden_size=hidden,
        intermediate_size=_mlp_width(keys, hidden),
        num_heads=heads,
        patch_size=keys.integer("patch_size"),
        channels=keys.integer("in_chans" if "in_chans" in inner else "in_channels", 3),
        merge=merge,
        norm_eps=keys.number("layer_norm_eps" if "layer_norm_eps" in inner else "rms_norm_eps", 1e-6),
    )


def _mlp_width(keys: Keys, hidden: int) -> int:
    if "intermediate_size" in keys.source:
        return keys.integer("intermediate_size")
    return int(hidden * keys.number("mlp_ratio"))


def read_vl_source(config: VlConfig, where: str) -> dict[str, Any]:
    """The config.json of the model that is built, in the flat form; without multi-token prediction it says so."""
    source = flat(read_source(config), where)
    return {**source, MTP_KEY: 0} if source.get(MTP_KEY) else source
