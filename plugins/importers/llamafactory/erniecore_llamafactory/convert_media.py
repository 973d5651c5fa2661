"""Images and videos: sizes, frames, and the parts of a vision-language model that are trained."""

from __future__ import annotations

from erniecore_llamafactory.convert_model import plugin_of
from erniecore_llamafactory.draft import LlamaDraft
from erniecore_llamafactory.keys_data import MEDIA
from erniecore_llamafactory.keys_model import PARTS

_IMAGES = {"image_max_pixels": "model.image_max_pixels", "image_min_pixels": "model.image_min_pixels"}
_VIDEOS = {
    "video_max_pixels": "model.video_max_pixels",
    "video_min_pixels": "model.video_min_pixels",
    "video_fps": "model.video_fps",
    "video_maxlen": "model.video_max_frames",
}


def media(draft: LlamaDraft) -> None:
    """``model.image_*``, ``model.video_*``, ``model.media_roots`` and ``model.train``."""
    plugin = plugin_of(draft)
    names = ["media_dir", *(key.old for key in (*MEDIA, *PARTS))]
    if plugin not in ("ernie45-vl", "paddleocr-vl"):
        draft.drop("this model reads no images", *names)
        return
    for old, new in {**_IMAGES, **(_VIDEOS if plugin == "ernie45-vl" else {})}.items():
        draft.carry(old, new)
    if draft.has("media_dir"):
        draft.set("model.media_roots", [str(draft.get("media_dir"))], "media_dir")
    if plugin == "ernie45-vl":
        if any(draft.has(old) for old in _VIDEOS):  # its rule: as many as the rate says, evenly from first to last
            draft.set("model.video_frames", "linspace", *(old for old in _VIDEOS if draft.has(old)))
        if str(draft.get("finetuning_type")).lower() == "full" and draft.purpose == "train":
            _parts(draft)
    draft.drop("PaddleOCR-VL reads no videos", *_VIDEOS)
    draft.drop("`adapter.targets` says what is trained", *(key.old for key in PARTS))


def _parts(draft: LlamaDraft) -> None:
    frozen = {
        "freeze_language_model": ("text", "vision_experts"),
        "freeze_vision_tower": ("vision",),
        "freeze_multi_modal_projector": ("resampler",),
    }
    parts = [part for old, names in frozen.items() if not draft.get(old) for part in names]
    if not parts:
        draft.fault("freeze_language_model", "every part of the model is frozen")
        return
    draft.set("model.train", parts, *frozen)
