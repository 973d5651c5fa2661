"""What a config.json says about an ERNIE 5.0 model, on top of the keys of the mixture-of-experts text models. No paddle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from erniecore_ernie45.architecture import Keys, decoder_fields
from erniecore_ernie45_moe.architecture import MoeArchitecture, moe_fields

from erniecore.api import Json
from erniecore_ernie5.audio_tokens import AudioTokens
from erniecore_ernie5.image_tokens import MERGED, ImageTokens

MODEL_TYPE = "ernie5"
#: keys that name the special tokens before and behind images and audio
MARKERS = ("image_start_token", "image_end_token", "audio_start_token", "audio_end_token")


@dataclass(frozen=True)
class Ernie5Architecture(MoeArchitecture):
    """Sizes of the decoder, and of the tokens of images and audio.

    Attributes:
        markers: key of ``MARKERS`` -> the special token.
        time_pairs: rotary pairs of a head that turn with the time; the others turn with height and width, in turns.
        read_layers: of the vision transformer through which images are read, beside convolutions; 0: neither.
    """

    image: ImageTokens
    audio: AudioTokens
    markers: Mapping[str, str]
    time_pairs: int
    read_layers: int

    @classmethod
    def parse(cls, source: Json, where: str = "config.json") -> Ernie5Architecture:
        """Raises ``CheckpointError`` for missing, impossible or contradictory keys."""
        keys = Keys(source, where)
        fields = {**decoder_fields(keys, MODEL_TYPE), **moe_fields(keys)}
        image, audio = _image(keys), _audio(keys)
        for key, fault in _faults(image, audio):
            raise keys.fault(key, fault)
        if audio.levels > fields["num_hidden_layers"]:
            raise keys.fault("audio_levels", "more than num_hidden_layers: each level is read above a layer of its own")
        pairs = fields["head_dim"] // 2
        time_pairs = keys.integer("rope_time_pairs", pairs // 4, minimum=0)
        if time_pairs > pairs:
            raise keys.fault("rope_time_pairs", f"more than the {pairs} rotary pairs of a head")
        read_layers = keys.integer("image_read_layers", 0, minimum=0, maximum=256)
        if read_layers and image.patch % MERGED:
            raise keys.fault("image_patch", f"not a multiple of {MERGED}, as image_read_layers needs it")
        return cls(
            **fields,
            image=image,
            audio=audio,
            markers=_markers(keys),
            time_pairs=time_pairs,
            read_layers=read_layers,
        )


def _image(keys: Keys) -> ImageTokens:
    scales = keys.source.get("image_scales")
    if not isinstance(scales, list) or not all(type(side) is int and side > 0 for side in scales):
        raise keys.fault("image_scales", "not the sides of the scales", expected="whole numbers, such as [1, 2, 4]")
    size, patch = keys.integer("image_size", maximum=4096), keys.integer("image_patch", maximum=256)
    return ImageTokens(size, patch, tuple(scales), keys.integer("image_levels", 2, minimum=2, maximum=256))


def _audio(keys: Keys) -> AudioTokens:
    return AudioTokens(
        sample_rate=keys.integer("audio_sample_rate", maximum=1 << 20),
        frame=keys.integer("audio_frame", maximum=1 << 16),
        levels=keys.integer("audio_levels", maximum=64),
        notes=keys.integer("audio_notes", maximum=120),
    )


def _faults(image: ImageTokens, audio: AudioTokens) -> Iterator[tuple[str, str]]:
    yield from image.faults()
    yield from audio.faults()


def _markers(keys: Keys) -> dict[str, str]:
    found: dict[str, Any] = {name: keys.source.get(name) for name in MARKERS}
    for name, value in found.items():
        keys.required(name)
        if not isinstance(value, str) or list(found.values()).count(value) > 1:
            raise keys.fault(name, "not a special token of its own", expected="four different ones")
    return found
