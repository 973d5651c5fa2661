"""Tones as frames of residual codes, and back. No weights, numpy only.

A frame (80 ms) is approximated level by level: the code of a level is the code vector that is nearest to what the levels before
have left. Code vectors are sine waves: each level has the notes of the tempered scale, moved to the nearest whole number of
waves in a frame, with two amplitudes, which halve from level to level, and code 0 is silence. Waves of different notes are
orthogonal, a steady tone goes on from frame to frame without a break, and a sum of one wave per level comes back exactly. Other
sounds become the nearest such sums: this is a codec for tones, not for speech.
Source: residual vector quantization (SoundStream, arXiv:2107.03312) with 12.5 frames per second as in ERNIE 5.0.

Letters: n samples, T frames, F samples of a frame, L levels, K codes of a level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Codes: TypeAlias = NDArray[np.int16]
Waves: TypeAlias = NDArray[np.float32]
LOWEST = 220.0
#: amplitudes of the first level; each level has half of those of the one before
AMPLITUDES = (0.4, 0.2)
_NAMES = ("a", "a#", "b", "c", "c#", "d", "d#", "e", "f", "f#", "g", "g#")


@dataclass(frozen=True)
class AudioTokens:
    """Sizes of the codes.

    Attributes:
        sample_rate: samples per second. frame: samples of a frame. levels: codes of a frame.
        notes: of the tempered scale, from 220 Hz upwards.
    """

    sample_rate: int = 8000
    frame: int = 640
    levels: int = 3
    notes: int = 36

    @property
    def num_codes(self) -> int:
        """Of each level: silence, and every note with both amplitudes."""
        return 1 + self.notes * len(AMPLITUDES)

    def faults(self) -> Iterator[tuple[str, str]]:
        """(field, what is wrong) of sizes whose notes could not be told apart."""
        waves = self.waves()
        if len(set(waves)) < len(waves):
            yield "audio_frame", "too short: two notes have the same number of waves in a frame"
        elif waves and max(waves) * 2 >= self.frame:
            yield "audio_notes", f"the highest is above half of audio_sample_rate = {self.sample_rate}"

    def waves(self) -> list[int]:
        """Whole waves in a frame, of each note."""
        return [round(LOWEST * 2 ** (note / 12) * self.frame / self.sample_rate) for note in range(self.notes)]

    def name(self, note: int) -> str:
        """The note's name and octave, such as ``a 4``: 0 is the a below middle c's a."""
        return f"{_NAMES[note % 12]} {3 + (note + 9) // 12}"

    def code(self, note: int, soft: bool = False) -> int:
        """The code of a note, in every level."""
        return 1 + note * len(AMPLITUDES) + soft

    def encode(self, samples: Waves) -> Codes:
        """Samples [n] in [-1, 1] -> codes int16 [T, L]; what is left behind the last whole frame is filled up with silence."""
        count = -(-len(samples) // self.frame)
        rest = np.zeros((count, self.frame), np.float32)
        rest.reshape(-1)[: len(samples)] = samples
        codes = np.zeros((count, self.levels), np.int16)
        for level in range(self.levels):
            vectors = code_vectors(self, level)
            # |r - c|^2 without |r|^2, which is the same for all codes
            distance = (vectors * vectors).sum(axis=1)[None] - 2 * rest @ vectors.T
            codes[:, level] = distance.argmin(axis=1)
            rest = rest - vectors[codes[:, level]]
        return codes

    def decode(self, codes: Codes) -> Waves:
        """Codes [T, L] -> samples float32 [T * F]."""
        frames = [code_vectors(self, level)[codes[:, level]] for level in range(self.levels)]
        return np.sum(frames, axis=0, dtype=np.float32).reshape(-1)


@lru_cache(maxsize=32)
def code_vectors(tokens: AudioTokens, level: int) -> Waves:
    """float32 [K, F] of a level."""
    phase = 2 * np.pi * np.arange(tokens.frame) / tokens.frame
    shapes = np.sin(np.outer(tokens.waves(), phase))
    loud = np.array(AMPLITUDES) / 2**level
    vectors = (shapes[:, None, :] * loud[None, :, None]).reshape(-1, tokens.frame)
    return np.concatenate([np.zeros((1, tokens.frame)), vectors]).astype(np.float32)
