"""The size of an update: rank, alpha and scale."""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    """Rank r and alpha of one update; s = alpha / r, or alpha / sqrt(r) when ``rank_stabilized``."""

    rank: int
    alpha: float
    rank_stabilized: bool = False

    @property
    def scale(self) -> float:
        """The scaling factor s of the update."""
        return float(self.alpha / (self.rank**0.5 if self.rank_stabilized else self.rank))

    def doubled(self) -> Size:
        """Twice the rank at the same scale."""
        factor = 2**0.5 if self.rank_stabilized else 2
        return self._replace(rank=2 * self.rank, alpha=self.alpha * factor)
