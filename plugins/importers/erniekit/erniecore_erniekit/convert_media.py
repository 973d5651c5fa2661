"""Images and videos: what ERNIEKit's vision-language stages say about sizes, frames and the parts that are trained."""

from __future__ import annotations

from erniecore_key_tables import Left

from erniecore_erniekit.convert_model import VISION, plugin_of, stage
from erniecore_erniekit.draft import ErniekitDraft
from erniecore_erniekit.keys_data import MEDIA

#: what the model plugins call it; PaddleOCR-VL has the images alone
_IMAGES = {"min_pixels": "model.image_min_pixels", "max_pixels": "model.image_max_pixels"}
_VIDEOS = {
    "video_fps": "model.video_fps",
    "video_min_frames": "model.video_min_frames",
    "video_max_frames": "model.video_max_frames",
    "video_min_pixels": "model.video_min_pixels",
    "video_max_pixels": "model.video_max_pixels",
    "render_timestamp": "model.video_timestamps",
}
_PARTS = {"text": "freeze_lm", "vision": "freeze_vision", "resampler": "", "vision_experts": "freeze_lm"}


def media(draft: ErniekitDraft) -> None:
    """``model.image_*``, ``model.video_*``, ``model.train`` and ``model.lr_factors``."""
    if stage(draft) not in VISION:
        draft.drop("only where images are read: `stage: VL-SFT`", *(key.old for key in MEDIA))
        return
    images_alone = plugin_of(draft) == "paddleocr-vl"
    for old, new in {**_IMAGES, **({} if images_alone else _VIDEOS)}.items():
        draft.carry(old, new)
    draft.drop("PaddleOCR-VL reads no videos", *_VIDEOS)
    if draft.has("video_target_frames") and not images_alone:
        draft.set("model.video_target_frames", max(int(draft.get("video_target_frames")), 0), "video_target_frames")
    draft.drop("PaddleOCR-VL reads no videos", "video_target_frames", "video_frames_sample")
    sample = str(draft.get("video_frames_sample")).lower()
    text = "the middle frame of each interval is taken"
    draft.leave(Left(text, differs=sample != "middle"), "video_frames_sample")
    _parts(draft, images_alone)


def _parts(draft: ErniekitDraft, images_alone: bool) -> None:
    if str(draft.get("fine_tuning")).lower() != "full" or images_alone or draft.purpose != "train":
        draft.drop("`adapter.targets` says what is trained", "freeze_config", "vit_lr_ratio", "visual_ld")
        return
    frozen = str(draft.get("freeze_config") or "").split()
    parts = [part for part, flag in _PARTS.items() if flag not in frozen]
    draft.set("model.train", parts, "freeze_config")
    for old in ("vit_lr_ratio", "visual_ld"):
        if draft.has(old) and "vision" in parts:
            draft.set("model.lr_factors", {"vision": float(draft.get(old))}, old)
            draft.note("differs", "one factor for the whole tower; ERNIEKit takes its power by layer", old)
        draft.drop("the tower is frozen", old)
