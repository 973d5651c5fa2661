"""Images and sounds as arrays, and back: PNG and other images by Pillow, WAV of 16 bits; and the parts of rows that name them."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from erniecore_ernie5.audio_tokens import AudioTokens, Waves
from erniecore_ernie5.image_tokens import ImageTokens
from erniecore_media import Limits, MediaError, as_png, decode, read_bytes
from numpy.typing import NDArray

from erniecore.api import RowError
from erniecore.api.data import codes
from erniecore_next_group.rows import Part

#: of one file
LIMITS = Limits(bytes=1 << 24, pixels=1 << 22)


@contextmanager
def read_for(part: Part) -> Iterator[None]:
    """What is wrong with an image or a sound is wrong with the row: ``RowError`` with the JSON path of the part."""
    try:
        yield
    except MediaError as error:
        facts = {"found": error.found, "expected": error.expected, "fix": error.fix}
        raise RowError(str(error), code=codes.BAD_VALUE, where=part.where, **facts) from error


def read_image(source: str, roots: Sequence[str], image: ImageTokens) -> NDArray[np.uint8]:
    """Pixels uint8 [size, size, 3]. Raises ``MediaError``, also for an image of another size."""
    pixels = np.asarray(decode(read_bytes(source, roots, LIMITS), LIMITS))
    if pixels.shape[:2] != (image.size, image.size):
        found, expected = f"{pixels.shape[1]} x {pixels.shape[0]} pixels", f"{image.size} x {image.size}"
        raise MediaError("the image has another size than the model's", found=found, expected=expected, fix="resize it")
    return pixels


def png(pixels: NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG file with these pixels."""
    data: bytes = as_png(pixels)
    return data


def read_audio(source: str, roots: Sequence[str], audio: AudioTokens) -> Waves:
    """Samples [n] in [-1, 1], of several channels the mean. Raises ``MediaError`` for what is no WAV of the model's rate."""
    data = read_bytes(source, roots, LIMITS)
    try:
        with wave.open(io.BytesIO(data)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2" if width == 2 else np.uint8)
    except (wave.Error, EOFError, ValueError) as error:
        raise MediaError(f"the sound cannot be read: {error}", found=source[:80], expected="a WAV file") from error
    if width != 2 or rate != audio.sample_rate or not len(samples):
        found = f"{8 * width} bits, {rate} samples per second, {len(samples)} samples"
        expected = f"16 bits, {audio.sample_rate} samples per second"
        raise MediaError("not a sound that the model takes", found=found, expected=expected, fix="convert it")
    mono: Waves = (samples.reshape(-1, channels).mean(axis=1) / 32767).astype(np.float32)
    return mono


def wav(samples: Waves, audio: AudioTokens) -> bytes:
    """A WAV file with one channel of 16 bits."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(audio.sample_rate)
        file.writeframes(np.rint(samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return out.getvalue()
