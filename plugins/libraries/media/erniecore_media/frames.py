"""Which frames of a video a model sees: pure functions of how many there are, and how fast they follow each other.

``fps``: as ERNIE chooses them for training: the middle of every 1/fps seconds; where that is fewer or more than the limits, as
many as the limit from equal intervals. ``intervals``: as PaddleFormers: fps times the duration of them, the middle of equal
intervals. ``linspace``: as LLaMA-Factory: as many, evenly from the first to the last frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

Rule: TypeAlias = Literal["fps", "intervals", "linspace"]


@dataclass(frozen=True)
class FrameChoice:
    """How many frames.

    Attributes:
        fps: frames per second. fewest: for the rule ``fps`` alone. most: of any rule. target: exactly so many; 0: by ``fps``.
    """

    rule: Rule = "fps"
    fps: float = 2.0
    fewest: int = 16
    most: int = 480
    target: int = 0

    def indices(self, total: int, rate: float) -> list[int]:
        """Ascending indices of frames, at least one.

        Args:
            total: frames of the video. rate: frames per second of the video.
        """
        wanted = int(total / rate * self.fps)
        if self.target:
            wanted = self.target
        elif self.rule == "fps" and self.fewest <= wanted <= self.most:
            return _middles(total, rate, self.fps) or _intervals(total, 1)
        elif self.rule == "fps":
            wanted = max(wanted, self.fewest)
        count = max(1, min(wanted, self.most, total))
        return _evenly(total, count) if self.rule == "linspace" else _intervals(total, count)


def _middles(total: int, rate: float, fps: float) -> list[int]:
    """The frame nearest to the middle of every 1 / fps seconds; halves to the even one."""
    gap = 1 / fps
    times = np.arange(gap / 2, total / rate + gap / 2, gap)
    return [int(i) for i in np.around(times * rate) if i < total]


def _intervals(total: int, count: int) -> list[int]:
    """The middle of each of ``count`` equal intervals."""
    edges = np.linspace(0, total, count + 1).astype(np.int64).tolist()
    return [(start + end - 1) // 2 for start, end in pairwise(edges)]


def _evenly(total: int, count: int) -> list[int]:
    """From the first frame to the last."""
    return [int(i) for i in np.linspace(0, total - 1, count).astype(np.int64)]
