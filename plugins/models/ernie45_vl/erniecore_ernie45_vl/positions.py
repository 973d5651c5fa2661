"""Where tokens of text, images and videos stand: positions (time, height, width) of every token, and of every patch in its
image. Pure numpy over ids and grids; no weights, no paddle.

Letters: B rows, S positions, N patches or tokens of images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from erniecore_ernie45_vl.architecture import Markers

Ints: TypeAlias = NDArray[Any]
TEXT, IMAGE, VIDEO = 0, 1, 2
#: frames that become one
TEMPORAL_MERGE = 2


class Grid(NamedTuple):
    """Patches of an image: frames, rows, columns. An image has one frame, a video an even number."""

    frames: int
    rows: int
    columns: int

    def merged(self, merge: int) -> Grid:
        """Tokens in each direction."""
        return Grid(-(-self.frames // TEMPORAL_MERGE), self.rows // merge, self.columns // merge)

    @property
    def size(self) -> int:
        """Number of cells of the grid."""
        return self.frames * self.rows * self.columns


def read_grids(values: Any, kind: int, merge: int) -> list[Grid]:
    """Grids [n, 3] of images or videos. Raises ``ValueError`` for one that cannot be merged into tokens."""
    grids = [Grid(*map(int, row)) for row in np.asarray(values).reshape(-1, 3)]
    for grid in grids:
        good = grid.frames == 1 if kind == IMAGE else grid.frames > 0 and grid.frames % TEMPORAL_MERGE == 0
        if not good:
            expected = "1 frame" if kind == IMAGE else "an even number of frames"
            raise ValueError(f"a grid {tuple(grid)} of {_NAMES[kind]}: expected {expected}")
        if min(grid.rows, grid.columns) < 1 or grid.rows % merge or grid.columns % merge:
            raise ValueError(f"a grid {tuple(grid)}: rows and columns must be multiples of {merge}")
    return grids


def patch_places(grids: Sequence[Grid], merge: int) -> Ints:
    """Row and column [N, 2] of every patch. Patches come square after square of ``merge`` by ``merge``: squares row by row,
    and inside a square row by row again; every frame alike."""
    places = []
    for grid in grids:
        shape = grid.rows // merge, grid.columns // merge, merge, merge
        square_row, square_column, row, column = np.indices(shape).reshape(4, -1)
        frame = np.stack([square_row * merge + row, square_column * merge + column], axis=1)
        places.append(np.tile(frame, (grid.frames, 1)))
    return np.concatenate(places)


def frame_pairs(grids: Sequence[Grid], merge: int) -> tuple[Ints, Ints]:
    """Indices [N] into the spatial tokens of all images: of the even and of the odd frame that become one. An image's
    single frame is both."""
    even, odd, start = [], [], 0
    for grid in grids:
        area = grid.rows * grid.columns // merge**2
        frames = start + np.arange(grid.frames * area).reshape(grid.frames, area)
        even.append(frames[::TEMPORAL_MERGE].reshape(-1))
        odd.append((frames if grid.frames == 1 else frames[1::TEMPORAL_MERGE]).reshape(-1))
        start += grid.frames * area
    return np.concatenate(even), np.concatenate(odd)


_NAMES = {IMAGE: "an image", VIDEO: "a video"}


def kinds_of(ids_BS: Ints, markers: Markers) -> Ints:
    """0 for text, 1 at image placeholders, 2 at video placeholders, from ids alone.

    Raises ``ValueError`` when both placeholders are the same id: only the caller knows which is which."""
    if markers.image == markers.video:
        raise ValueError("images and videos have the same placeholder: give mm_token_type_ids")
    return np.where(ids_BS == markers.image, IMAGE, np.where(ids_BS == markers.video, VIDEO, TEXT))


def routed_as_vision(ids_BS: Ints, kinds_BS: Ints, begins: Sequence[int], ends: Sequence[int]) -> Ints:
    """bool [B, S]: placeholders, and the begin and end tokens right before and behind them. Those tokens elsewhere are text: a
    model that generates one passes it through the text experts, and so must who learns from the completion."""
    inside_BS: Ints = kinds_BS != TEXT
    before_BS, behind_BS = np.zeros_like(inside_BS), np.zeros_like(inside_BS)
    before_BS[:, :-1], behind_BS[:, 1:] = inside_BS[:, 1:], inside_BS[:, :-1]
    return inside_BS | (np.isin(ids_BS, begins) & before_BS) | (np.isin(ids_BS, ends) & behind_BS)


def token_positions(
    kinds_BS: Ints, grids: dict[int, list[Grid]], merge: int, real_BS: Ints | None = None
) -> tuple[Ints, Ints]:
    """Positions int64 [B, S, 3] as (time, height, width), and the position that follows each row, int64 [B].

    Text counts up on all three axes together. An image that starts at s has (s + frame, s + row, s + column), and the
    token after it stands at the largest position so far + 1: also after videos that are longer than they are wide.

    Args:
        grids: patches of images and of videos, in the order in which they stand in the rows.
        real_BS: false at padding, which gets (0, 0, 0).
    Raises:
        ValueError: placeholders and grids that do not fit each other.
    """
    positions = np.zeros((*kinds_BS.shape, 3), np.int64)
    following = np.zeros(len(kinds_BS), np.int64)
    left = {kind: iter(found) for kind, found in grids.items()}
    for row, kinds_S in enumerate(kinds_BS):
        places = np.arange(len(kinds_S)) if real_BS is None else np.flatnonzero(real_BS[row])
        at, count = 0, 0
        while at < len(places):
            kind = int(kinds_S[places[at]])
            if kind == TEXT:
                positions[row, places[at]] = count
                at, count = at + 1, count + 1
                continue
            grid = _next(left, kind, row, int(places[at])).merged(merge)
            span = places[at : at + grid.size]
            if len(span) < grid.size or (kinds_S[span] != kind).any():
                raise ValueError(f"row {row}: {_NAMES[kind]} of {grid.size} tokens has fewer placeholders")
            positions[row, span] = count + np.indices(grid).reshape(3, -1).T
            at, count = at + grid.size, count + max(grid)
        following[row] = count
    for kind, spare in left.items():
        if next(spare, None) is not None:
            raise ValueError(f"the rows have fewer placeholders than there are grids: {_NAMES[kind]} is left over")
    return positions, following


def sample_positions(kinds_n: Ints, places_n: Ints, grids: dict[int, list[Grid]], merge: int) -> Ints:
    """Positions int64 [n, 3] of a sample whose parts may go on from an earlier place, as two completions of one prompt do.

    Args:
        places_n: positions of the tokens as text: a part that begins at p follows the sample's first p tokens.
        grids: as for :func:`token_positions`; images of several parts in their order.
    """
    n = len(kinds_n)
    bounds = [0, *(np.flatnonzero(np.diff(places_n) != 1) + 1).tolist(), n]
    if len(bounds) == 2:
        return token_positions(kinds_n[None], grids, merge)[0].reshape(n, 3)
    # the number of the image of its kind that begins at each token
    begins = {kind: np.flatnonzero((kinds_n == kind) & (np.roll(kinds_n, 1) != kind)) for kind in grids}
    out = np.zeros((n, 3), np.int64)
    for start, end in pairwise(bounds):
        first = int(places_n[start]) if start else 0
        path = np.concatenate([np.arange(first), np.arange(start, end)])
        here = {
            kind: [g for g, at in zip(found, begins[kind], strict=True) if at < first or start <= at < end]
            for kind, found in grids.items()
        }
        out[start:end] = token_positions(kinds_n[path][None], here, merge)[0][0, first:]
    return out


def _next(left: dict[int, Iterator[Grid]], kind: int, row: int, place: int) -> Grid:
    grid = next(left.get(kind, iter(())), None)
    if grid is None:
        raise ValueError(f"row {row}: the placeholder at {place} belongs to no grid: {_NAMES[kind]} is missing")
    return grid
