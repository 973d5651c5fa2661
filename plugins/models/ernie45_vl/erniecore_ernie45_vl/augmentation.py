"""The setting ``model.image_augment``: which random changes the images of training rows get. Light; what they do to pixels is
``erniecore_media.augment``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from pydantic import model_validator

from erniecore.api import Field, Section

if TYPE_CHECKING:
    from erniecore_media.augment import Transform

Name: TypeAlias = Literal[
    "rotate",
    "shear",
    "scale",
    "crop",
    "perspective",
    "brightness",
    "contrast",
    "saturation",
    "sharpness",
    "hue",
    "blur",
    "noise",
    "jpeg",
    "downscale",
    "grayscale",
    "invert",
    "horizontal_flip",
]


class Range(NamedTuple):
    """The range of a transform where none is given, and between which numbers one may be."""

    low: float
    high: float
    least: float
    most: float


RANGES: Mapping[str, Range] = {
    "rotate": Range(-3, 3, -180, 180),
    "shear": Range(-3, 3, -45, 45),
    "scale": Range(0.9, 1.1, 0.1, 10),
    "crop": Range(0, 0.05, -0.5, 0.45),
    "perspective": Range(0, 0.05, 0, 0.45),
    "brightness": Range(0.8, 1.2, 0, 10),
    "contrast": Range(0.8, 1.2, 0, 10),
    "saturation": Range(0.8, 1.2, 0, 10),
    "sharpness": Range(0.5, 2, 0, 10),
    "hue": Range(-0.05, 0.05, -0.5, 0.5),
    "blur": Range(0.2, 1.2, 0, 50),
    "noise": Range(2, 10, 0, 255),
    "jpeg": Range(40, 95, 1, 100),
    "downscale": Range(0.5, 0.9, 0.05, 1),
}
#: words for several transforms. ``document``: as pages are photographed and scanned; ``photo``: as cameras differ
PRESETS: Mapping[str, tuple[Name, ...]] = {
    "document": ("rotate", "perspective", "brightness", "contrast", "blur", "noise", "jpeg", "grayscale"),
    "photo": ("scale", "crop", "brightness", "contrast", "saturation", "hue", "jpeg"),
}
#: probabilities where none is given and it is not the usual half
_PROBABILITIES: Mapping[str, float] = {"grayscale": 0.1, "invert": 0.1}
_HALF = 0.5


class ImageTransform(Section):
    """A random change of an image."""

    transform: Name = Field(
        description="`rotate` and `shear`: degrees; `scale`: factor of the content; `crop`: share of each side that is cut off, "
        "below 0 a margin; `perspective`: by which share of the sides corners go inward; `brightness`, `contrast`, "
        "`saturation`, `sharpness`: factors; `hue`: turns of the color circle; `blur`: radius in pixels; `noise`: standard "
        "deviation in levels of 255; `jpeg`: quality; `downscale`: factor of a smaller size and back; `grayscale`, `invert`, "
        "`horizontal_flip`, which have no range."
    )
    p: float | None = Field(None, ge=0, le=1, description="Probability. Unset: 0.5; of `grayscale` and `invert` 0.1.")
    range: tuple[float, float] | None = Field(
        None,
        description="Values are drawn evenly from the first to the second number. Unset: as the documentation lists.",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """A name alone is the transform with what is usual; what is used is written down."""
        given = {"transform": value} if isinstance(value, str) else value
        if not isinstance(given, Mapping) or given.get("transform") not in get_args(Name):
            return given
        name = given["transform"]
        p = _PROBABILITIES.get(name, _HALF) if given.get("p") is None else given["p"]
        usual = RANGES[name][:2] if name in RANGES else None
        chosen = usual if given.get("range") is None else given["range"]
        return {**given, "p": p, "range": tuple(chosen) if isinstance(chosen, list) else chosen}

    @model_validator(mode="after")
    def _usable(self) -> ImageTransform:
        allowed = RANGES.get(self.transform)
        if self.range is None:
            return self
        if allowed is None:
            raise ValueError(f"{self.transform} has no range: leave it out")
        low, high = self.range
        if not allowed.least <= low <= high <= allowed.most:
            expected = f"two numbers from {allowed.least:g} to {allowed.most:g}, the smaller one first"
            raise ValueError(f"range of {self.transform}: expected {expected}, found [{low:g}, {high:g}]")
        return self

    def made(self) -> Transform:
        """As the media library takes it."""
        from erniecore_media.augment import Transform

        low, high = self.range or (0.0, 0.0)
        return Transform(self.transform, _HALF if self.p is None else self.p, low, high)


def spelled_out(value: Any) -> Any:
    """``document`` or ``rotate,jpeg`` as the command line gives it, and presets in a list, as a list of transforms. Raises
    ``ValueError`` for another word."""
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    found: list[Any] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, str) and item not in PRESETS and item not in get_args(Name):
            names, presets = ", ".join(get_args(Name)), " and ".join(PRESETS)
            raise ValueError(f"{item!r} is none of the transforms {names}, and none of the presets {presets}")
        found += PRESETS.get(item, (item,)) if isinstance(item, str) else [item]
    return tuple(found)
