"""Which images each of several ranks computes that have the same rows, where their tokens are afterwards, and what of the inputs
belongs to them. Pure, but for taking rows of tensors.

Letters: N patches, M tokens of images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from erniecore_sampler.steps import balanced

from erniecore_ernie45_vl.positions import IMAGE, VIDEO, Grid, Ints

if TYPE_CHECKING:
    from erniecore_ernie45_vl.seeing_model import VisionInputs

#: kind -> names of its pixels and grids among the inputs
_INPUTS = {IMAGE: ("pixel_values", "image_grid_thw"), VIDEO: ("pixel_values_videos", "video_grid_thw")}


@dataclass(frozen=True)
class ImageShares:
    """Images, then videos, in their order, as items.

    Attributes:
        members: of each rank the items that it computes, ascending. A rank without one computes the smallest item beside its
            owner, so that its weights have gradients as those of the others do; nothing comes of it.
        longest: tokens of the rank that has the most.
        order: int64 [M], of each token of all items in their order its row among ``longest`` rows of each rank.
    """

    members: list[list[int]]
    longest: int
    order: Ints

    @classmethod
    def of(cls, grids: dict[int, list[Grid]], merge: int, num_ranks: int) -> ImageShares:
        """Ranks get about as many patches: a pure function, the same on all of them."""
        items = [grid for found in grids.values() for grid in found]
        costs = [grid.size for grid in items]
        shares = balanced(costs, num_ranks, len(items))
        members = [share or [int(np.argmin(costs))] for share in shares]
        tokens = [grid.merged(merge).size for grid in items]
        longest = max(sum(tokens[i] for i in share) for share in members)
        places: dict[int, Ints] = {}
        for rank, share in enumerate(shares):
            starts = rank * longest + np.cumsum([0, *(tokens[i] for i in share)])
            places |= {i: np.arange(start, start + tokens[i]) for i, start in zip(share, starts, strict=False)}
        return cls(members, longest, np.concatenate([places[i] for i in range(len(items))]))

    def part(
        self, seen: VisionInputs, grids: dict[int, list[Grid]], rank: int
    ) -> tuple[VisionInputs, dict[int, list[Grid]]]:
        """Pixels and grids of the items of a rank, as a batch of them alone has them."""
        import paddle

        changed, here, first = {}, dict[int, list[Grid]](), 0
        for kind, found in grids.items():
            chosen = [i - first for i in self.members[rank] if first <= i < first + len(found)]
            ends = np.cumsum([grid.size for grid in found])
            rows = [np.arange(ends[i] - found[i].size, ends[i]) for i in chosen]
            values, _ = _INPUTS[kind]
            pixels = getattr(seen, values)
            changed[values] = paddle.gather(pixels, paddle.to_tensor(np.concatenate(rows))) if rows else None
            if rows:
                here[kind] = [found[i] for i in chosen]
            first += len(found)
        return seen._replace(**changed), here


def padded(values_BS: Ints, length: int) -> Ints:
    """With zeros up to ``length``."""
    return np.pad(values_BS, ((0, 0), (0, length - values_BS.shape[1])))
