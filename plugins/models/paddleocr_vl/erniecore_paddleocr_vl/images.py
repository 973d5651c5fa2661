"""How PaddleOCR-VL brings images to size. numpy and Pillow come with ``erniecore_ernie45_vl.images``, which does the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erniecore_ernie45_vl.images import MOST_ASPECT, Sizing, smart_size
from erniecore_ernie45_vl.preprocessing import OWN

from erniecore.api import EnvironmentFault
from erniecore.api.files import read_object
from erniecore_paddleocr_vl.config import OcrConfig

FILE = "preprocessor_config.json"
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class OcrSizing(Sizing):
    """Limits of the published model; patches row by row. ``upright``: turn images as their EXIF note says."""

    fewest: int = 147384
    most: int = 2822400
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    by_rows: bool = True
    upright: bool = False

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """A side below 28 is enlarged to 28 first, with the other in proportion.

        Raises ``ValueError`` for an image longer than 200 times its width, and as ``smart_size``."""
        for _ in range(2):
            if 0 < height < self.factor:
                height, width = self.factor, round(width * self.factor / height)
            height, width = width, height
        if max(height, width) > MOST_ASPECT * min(height, width):
            raise ValueError(f"an image of {width} x {height} pixels is longer than {MOST_ASPECT} times its other side")
        return smart_size(height, width, self)


def read_sizing(directory: Path, config: OcrConfig) -> OcrSizing:
    """What the settings say, else preprocessor_config.json in ``directory``, else the published model.

    Raises ``EnvironmentFault`` for values in that file that are not usable."""
    file, usual = directory / FILE, OcrSizing()
    said: Mapping[str, Any] = read_object(file, EnvironmentFault) if file.is_file() else {}
    size: Mapping[str, Any] = said["size"] if isinstance(said.get("size"), Mapping) else {}
    fewest = said.get("min_pixels") or size.get("shortest_edge") or usual.fewest
    most = said.get("max_pixels") or size.get("longest_edge") or usual.most
    mean, std = (said.get(key) or HALF for key in ("image_mean", "image_std"))
    for key, value, usable in (
        ("min_pixels", fewest, type(fewest) is int and fewest > 0),
        ("max_pixels", most, type(most) is int and most >= usual.factor**2),
        ("image_mean", mean, _numbers(mean)),
        ("image_std", std, _numbers(std) and min(std) > 0),
    ):
        if not usable:
            raise EnvironmentFault(
                "not usable", where=f"{file}: {key}", found=str(value)[:80], expected="numbers of pixels"
            )
    return OcrSizing(
        fewest=config.image_min_pixels or fewest,
        most=config.image_max_pixels or most,
        mean=tuple(mean),
        std=tuple(std),
        upright=_upright(said) if config.image_upright is None else config.image_upright,
    )


def _upright(said: Mapping[str, Any]) -> bool:
    own = said.get(OWN)
    return isinstance(own, Mapping) and own.get("image_upright") is True


def _numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 3 and all(type(n) in (int, float) for n in value)


def described(sizing: OcrSizing) -> dict[str, Any]:
    """preprocessor_config.json of a model that sees images so."""
    return {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(sizing.mean),
        "image_processor_type": "PaddleOCRVLImageProcessor",
        "image_std": list(sizing.std),
        "max_pixels": sizing.most,
        "merge_size": sizing.merge,
        "min_pixels": sizing.fewest,
        "patch_size": sizing.patch,
        "processor_class": "PaddleOCRVLProcessor",
        "resample": 3,
        "rescale_factor": 1 / 255,
        "temporal_patch_size": 1,
        OWN: {"image_upright": sizing.upright},
    }
