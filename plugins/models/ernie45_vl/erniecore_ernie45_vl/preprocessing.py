"""Which sizes and frames a model has learned from: settings, and the two files beside its weights that say so.

``preprocessor_config.json`` and ``video_preprocessor_config.json`` have the keys that transformers reads; what it has no key for
stands beside them under ``OWN``. A setting comes before the files, the files before what is usual for published models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_media import FrameChoice

from erniecore.api import EnvironmentFault, Json
from erniecore.api.files import read_object
from erniecore_ernie45_vl.images import Sizing

if TYPE_CHECKING:
    from erniecore_ernie45_vl.config import VlConfig

IMAGES, VIDEOS = "preprocessor_config.json", "video_preprocessor_config.json"
#: our own settings in these files, by the names that ``model.…`` has for them
OWN = "erniecore"
#: the name that the font of frames gets beside the weights, where it has none
FONT = "Aileron.ttf"


@dataclass(frozen=True)
class Preprocessing:
    """What the settings of the same names say; the defaults are those of published models."""

    image_min_pixels: int = 56 * 56
    image_max_pixels: int = 6177 * 28 * 28
    image_upright: bool = False
    video_min_pixels: int = 299 * 28 * 28
    video_max_pixels: int = 1196 * 28 * 28
    video_frames: str = "fps"
    video_fps: float = 2.0
    video_min_frames: int = 16
    video_max_frames: int = 480
    video_target_frames: int = 0
    video_timestamps: bool = True
    video_font: str = ""

    @property
    def images(self) -> Sizing:
        """How images are brought to size."""
        return Sizing(fewest=self.image_min_pixels, most=self.image_max_pixels)

    @property
    def frames(self) -> Sizing:
        """How the frames of videos are brought to size."""
        return Sizing(fewest=self.video_min_pixels, most=self.video_max_pixels)

    @property
    def choice(self) -> FrameChoice:
        """Which frames of a video are taken."""
        rule: Any = self.video_frames
        most = self.video_max_frames
        return FrameChoice(rule, self.video_fps, self.video_min_frames, most, self.video_target_frames)

    @classmethod
    def of(cls, config: VlConfig, directory: Path | None) -> Preprocessing:
        """What ``config`` says, else the files in ``directory``, else what is usual.

        Raises ``EnvironmentFault`` for values in these files that are not usable."""
        names = {field.name for field in fields(cls)}
        stated = {k: v for k, v in config.model_dump().items() if k in names and v is not None}
        return cls(**{**(_stored(directory) if directory is not None else {}), **stated})


def _stored(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file, kind in ((directory / IMAGES, "image"), (directory / VIDEOS, "video")):
        if not file.is_file():
            continue
        said: Mapping[str, Any] = read_object(file, EnvironmentFault)
        size, own = (_mapping(said, key) for key in ("size", OWN))
        keys = {
            f"{kind}_min_pixels": said.get("min_pixels") or size.get("shortest_edge"),
            f"{kind}_max_pixels": said.get("max_pixels") or size.get("longest_edge"),
        }
        if kind == "video":
            keys |= {f"video_{key}": said.get(key) for key in ("fps", "min_frames", "max_frames")}
            keys |= {"video_target_frames": said.get("num_frames"), "video_timestamps": said.get("draw_on_frames")}
        keys |= {key: own.get(key) for key in ("image_upright", "video_frames") if key in own}
        found |= {key: _checked(file, key, value) for key, value in keys.items() if value is not None}
        if kind == "video":
            found["video_font"] = _font(directory, said.get("font"))
    return found


def _mapping(said: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = said.get(key)
    return found if isinstance(found, Mapping) else {}


def _font(directory: Path, name: Any) -> str:
    """The font beside the weights; empty for none, and for Pillow's own, whose letters a font of a file stands closer."""
    from erniecore_media import font_bytes

    file = directory / name if isinstance(name, str) and name and name == Path(name).name else None
    if file is None or not file.is_file() or file.read_bytes() == font_bytes():
        return ""
    return str(file)


def _checked(file: Path, key: str, value: Any) -> Any:
    """The value of a setting, as the settings themselves would take it."""
    from pydantic import ValidationError

    from erniecore_ernie45_vl.config import VlConfig

    try:
        return VlConfig.model_validate({key: value}).model_dump()[key]
    except ValidationError as error:
        expected = str(error.errors()[0]["msg"])
        raise EnvironmentFault(
            "not usable", where=str(file), found=f"model.{key}: {value!r}"[:80], expected=expected
        ) from error


def described(made: Preprocessing) -> dict[str, Json]:
    """Both files, by name."""
    sizing = made.images
    both = {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(sizing.mean),
        "image_std": list(sizing.std),
        "merge_size": sizing.merge,
        "patch_size": sizing.patch,
        "processor_class": "Ernie4_5_VLMoeProcessor",
        "resample": 3,
        "rescale_factor": 1 / 255,
    }
    images = {
        **both,
        "image_processor_type": "Ernie4_5_VLMoeImageProcessor",
        "size": {"longest_edge": made.image_max_pixels, "shortest_edge": made.image_min_pixels},
        "temporal_patch_size": 1,
        OWN: {"image_upright": made.image_upright},
    }
    videos = {
        **both,
        "do_sample_frames": True,
        "draw_on_frames": made.video_timestamps,
        "font": (Path(made.video_font).name if made.video_font else FONT) if made.video_timestamps else None,
        "fps": made.video_fps,
        "max_frames": made.video_max_frames,
        "min_frames": made.video_min_frames,
        "num_frames": made.video_target_frames or None,
        "size": {"longest_edge": made.video_max_pixels, "shortest_edge": made.video_min_pixels},
        "temporal_patch_size": 2,
        "video_processor_type": "Ernie4_5_VLMoeVideoProcessor",
        OWN: {"video_frames": made.video_frames},
    }
    return {IMAGES: images, VIDEOS: videos}


def write(made: Preprocessing, directory: Path) -> list[Path]:
    """Both files and the font of frames; their paths."""
    from erniecore_media import font_bytes

    written: list[Path] = []
    for name, content in described(made).items():
        written.append(directory / name)
        written[-1].write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if made.video_timestamps:
        written.append(directory / (Path(made.video_font).name if made.video_font else FONT))
        written[-1].write_bytes(font_bytes(made.video_font))
    return written
