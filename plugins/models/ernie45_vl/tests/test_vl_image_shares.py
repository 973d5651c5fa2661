"""How ranks with the same rows share images."""

import numpy as np
import pytest
from erniecore_ernie45_vl.image_shares import ImageShares, padded
from erniecore_ernie45_vl.positions import IMAGE, VIDEO, Grid


def grids(*sides):
    return [Grid(1, 2 * side, 2 * side) for side in sides]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7])
def test_every_token_comes_from_the_one_rank_that_computes_its_image(num_ranks):
    found = {IMAGE: grids(3, 1, 2, 5), VIDEO: [Grid(4, 4, 4), Grid(2, 2, 2)]}
    shares = ImageShares.of(found, 2, num_ranks)
    items = [grid for kind in found.values() for grid in kind]
    buffer = np.full(num_ranks * shares.longest, -1)
    for rank, members in enumerate(shares.members):
        here = np.concatenate([np.full(items[i].merged(2).size, i) for i in members])
        buffer[rank * shares.longest :][: len(here)] = here
    expected = np.concatenate([np.full(grid.merged(2).size, i) for i, grid in enumerate(items)])
    np.testing.assert_array_equal(buffer[shares.order], expected)
    assert len(set(shares.order.tolist())) == len(expected)


def test_ranks_have_about_as_many_patches():
    found = {IMAGE: grids(*range(1, 13))}
    shares = ImageShares.of(found, 2, 3)
    loads = [sum(found[IMAGE][i].size for i in members) for members in shares.members]
    assert sum(loads) == sum(grid.size for grid in found[IMAGE])
    assert max(loads) - min(loads) <= 0.1 * max(loads)


def test_a_rank_without_an_image_computes_the_smallest_beside_its_owner():
    shares = ImageShares.of({IMAGE: grids(3, 1)}, 2, 4)
    assert shares.members == [[0], [1], [1], [1]]
    assert set((shares.order // shares.longest).tolist()) == {0, 1}


def test_values_of_tokens_are_padded_with_text():
    np.testing.assert_array_equal(padded(np.array([[1, 2]]), 4), [[1, 2, 0, 0]])
