"""What a config.json says about PaddleOCR-VL, on top of the keys of its text part. No paddle, no numpy.

Two spellings are read: the flat one of the published model, which is kept and written, and the nested one that newer
libraries write (``text_config`` beside ``vision_config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from erniecore_ernie45.architecture import MOST_LAYERS, Keys, decoder_fields, read_source
from erniecore_ernie45_vl.architecture import Markers, SeeingArchitecture, VisionArchitecture
from erniecore_ernie45_vl.spelling import one_level

from erniecore.api import Json
from erniecore.api.model import DecoderShape
from erniecore_paddleocr_vl.config import OcrConfig

MODEL_TYPE = "paddleocr_vl"
#: keys of the tower with a single supported value
ONLY_VISION = {"hidden_act": "gelu_pytorch_tanh", "spatial_merge_size": 2}


@dataclass(frozen=True)
class OcrArchitecture(SeeingArchitecture):
    """Sizes of the model.

    Attributes:
        sections: rotary pairs that follow time, height and width, in this order.
        table_side: learned positions of patches in each direction.
    """

    sections: tuple[int, int, int]
    table_side: int

    def shape(self) -> DecoderShape:
        """With tower and projector."""
        vision = self.vision
        learned = (self.table_side**2 + 1) * vision.hidden_size
        wide = vision.merged_size
        projector = 2 * vision.hidden_size + (wide + 1) * wide + (wide + 1) * self.hidden_size
        joint = 3 * vision.hidden_size + self.hidden_size // 4
        seen = vision.shape(joint, "projector.")
        return replace(super().shape(), beside=vision.num_parameters + learned + projector, vision=seen)

    @classmethod
    def parse(cls, source: Json, where: str = "config.json") -> OcrArchitecture:
        """Raises ``CheckpointError`` for missing, impossible or contradictory keys."""
        keys = Keys(flat(source, where), where)
        keys.only("use_3d_rope", True)
        plain = {**keys.source, "rope_scaling": None}
        fields = {**decoder_fields(Keys(plain, where), MODEL_TYPE), "source": dict(keys.source)}
        vision = _vision(keys)
        sections = _sections(keys, fields["head_dim"])
        side = Keys(keys.source["vision_config"], f"{where}: vision_config").integer("image_size") // vision.patch_size
        return cls(**fields, vision=vision, markers=_markers(keys), sections=sections, table_side=side)


def flat(source: Json, where: str) -> dict[str, Any]:
    """``source`` in the flat spelling; a flat one as it is. Unknown keys of both levels are kept.

    Raises ``CheckpointError`` for a ``text_config`` that is no mapping or that contradicts the level above."""
    merged, keys = one_level(source, where)
    if keys is None:
        return merged
    rope = merged.pop("rope_parameters", None)
    if isinstance(rope, Mapping):
        kind = rope.get("rope_type", "default")
        merged["rope_scaling"] = {"mrope_section": rope.get("mrope_section"), "rope_type": kind, "type": kind}
        merged["rope_theta"] = rope.get("rope_theta")
    return {**merged, "model_type": MODEL_TYPE}


def _sections(keys: Keys, head_dim: int) -> tuple[int, int, int]:
    keys.required("rope_scaling")
    rope = keys.source["rope_scaling"]
    if not isinstance(rope, Mapping):
        raise keys.fault("rope_scaling", "not a mapping", expected='{"mrope_section": [16, 24, 24], …}')
    inner = Keys(rope, f"{keys.where}: rope_scaling")
    for key in ("rope_type", "type"):
        inner.only(key, "default")
    inner.required("mrope_section")
    section = rope["mrope_section"]
    whole = isinstance(section, (list, tuple)) and all(type(n) is int and n >= 0 for n in section)
    if not whole or len(section) != 3 or sum(section) != head_dim // 2:
        expected = f"pairs of time, height and width, {head_dim // 2} in all"
        raise inner.fault("mrope_section", f"impossible for a head of {head_dim}", expected=expected)
    return section[0], section[1], section[2]


def _markers(keys: Keys) -> Markers:
    """Ids that files leave out are those of the published vocabulary, where the end token follows the start token. Videos are
    not read: they have no tokens around them."""
    start = keys.integer("vision_start_token_id", 101305)
    end = keys.integer("vision_end_token_id", start + 1)
    video = keys.integer("video_token_id", 100296)
    return Markers(keys.integer("image_token_id", 100295), video, start, end, start, end)


def _vision(outer: Keys) -> VisionArchitecture:
    inner = outer.source.get("vision_config")
    if not isinstance(inner, Mapping):
        raise outer.fault("vision_config", "not a mapping", expected="the keys of the vision tower")
    keys = Keys(inner, f"{outer.where}: vision_config")
    for key, supported in ONLY_VISION.items():
        keys.only(key, supported)
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    if hidden % heads or (hidden // heads) % 4:
        raise keys.fault("num_attention_heads", f"does not give heads of a multiple of 4 in a width of {hidden}")
    if keys.integer("image_size") < keys.integer("patch_size"):
        raise keys.fault("image_size", "smaller than a patch")
    return VisionArchitecture(
        depth=keys.integer("num_hidden_layers", maximum=MOST_LAYERS),
        hidden_size=hidden,
        intermediate_size=keys.integer("intermediate_size"),
        num_heads=heads,
        patch_size=keys.integer("patch_size"),
        channels=keys.integer("num_channels", 3),
        merge=2,
        norm_eps=keys.number("layer_norm_eps", 1e-6),
    )


def read_ocr_source(config: OcrConfig, where: str) -> dict[str, Any]:
    """The config.json of the model that is built, in the flat form."""
    return flat(read_source(config), where)
