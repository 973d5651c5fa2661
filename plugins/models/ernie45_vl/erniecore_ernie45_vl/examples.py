"""A few rows with images for checks of a model that sees: ids of random text around placeholders, and random pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from erniecore_ernie45_vl.architecture import SeeingArchitecture
from erniecore_ernie45_vl.positions import Grid

#: images of each row, in patches for squares of one patch
ROWS = ([Grid(1, 2, 3)], [Grid(1, 1, 2), Grid(1, 3, 1)], [Grid(1, 1, 1)], [Grid(1, 4, 2)])
LENGTH = 56


def example_rows(arch: SeeingArchitecture) -> list[tuple[list[int], dict[str, Any]]]:
    """Rows of one length: their ids, and what the model gets of their images, with pixels from 0 to 1."""
    rng, markers, merge = np.random.default_rng(0), arch.markers, arch.vision.merge
    rows = []
    for images in ROWS:
        grids = [Grid(1, image.rows * merge, image.columns * merge) for image in images]
        ids = rng.integers(5, min(vars(markers).values()), LENGTH).tolist()
        at = 3
        for grid in grids:
            count = grid.merged(merge).size
            ids[at : at + count + 2] = [markers.image_start, *[markers.image] * count, markers.image_end]
            at += count + 5
        pixels = rng.random((sum(grid.size for grid in grids), arch.vision.patch_values)).astype(np.float32)
        rows.append((ids, {"pixel_values": pixels, "image_grid_thw": np.array(grids, np.int64)}))
    return rows
