"""Who does what: coordinates and groups, from two ranks to two thousand."""

from itertools import combinations
from pathlib import Path

import pytest
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.mesh import AXES, BATCH, Mesh, problems
from erniecore_hybrid_parallel.planning import make_mesh, num_processes
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.api import ConfigError

few = settings(deadline=None, max_examples=30)
degree = st.integers(1, 3)
meshes = st.builds(
    lambda t, c, s, d, p: Mesh(dict(zip(AXES, (t, c, s, d, p), strict=True))), degree, degree, degree, degree, degree
)


@few
@given(meshes)
def test_coordinates_and_ranks_are_each_others_inverse(mesh):
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    assert [mesh.rank_at(place) for place in places] == list(range(mesh.size))


@few
@given(meshes)
def test_groups_are_disjoint_and_complete(mesh):
    for axis in AXES:
        assert problems(mesh.groups(axis), mesh.size, mesh.degrees[axis]) == []
    assert problems(mesh.groups(*BATCH), mesh.size, mesh.data_size) == []


@few
@given(meshes)
def test_ranks_that_share_rows_have_one_data_rank(mesh):
    for group in mesh.groups("tensor", "context", "pipeline"):
        assert len({mesh.data_rank(rank) for rank in group}) == 1
    for group in mesh.groups(*BATCH):
        assert sorted(mesh.data_rank(rank) for rank in group) == list(range(mesh.data_size))


@few
@given(meshes)
def test_groups_of_two_axes_share_at_most_one_rank(mesh):
    for one, other in combinations(AXES, 2):
        assert _meet_once(mesh.groups(one), mesh.groups(other), mesh.size)


@few
@given(meshes, st.integers(1, 8))
def test_expert_groups_cover_all_experts_once(mesh, expert):
    if mesh.data_size % expert:
        return
    mesh = Mesh(mesh.degrees, expert)
    assert problems(mesh.expert_groups(), mesh.size, expert) == []
    assert problems(mesh.expert_replicas(), mesh.size, mesh.data_size // expert) == []
    assert _meet_once(mesh.expert_groups(), mesh.expert_replicas(), mesh.size)


def _meet_once(one, other, size):
    """No two ranks are together in both partitions."""
    first, second = ({r: i for i, group in enumerate(groups) for r in group} for groups in (one, other))
    return len({(first[rank], second[rank]) for rank in range(size)}) == size


def test_tensor_ranks_are_neighbors():
    mesh = make_mesh(HybridConfig(tensor=4, sharding=2), 16)
    assert mesh.groups("tensor")[0] == [0, 1, 2, 3]
    assert mesh.groups("sharding")[0] == [0, 4]
    assert mesh.groups("data")[0] == [0, 8]


def test_two_thousand_ranks_are_mapped():
    # 300B-A47B on 2,016 ranks: 8 x 12 x 21
    mesh = Mesh({"tensor": 8, "context": 1, "sharding": 21, "data": 1, "pipeline": 12}, expert=7)
    for axis in AXES:
        assert problems(mesh.groups(axis), 2016, mesh.degrees[axis]) == []
    assert problems(mesh.expert_groups(), 2016, 7) == []
    assert problems(mesh.expert_replicas(), 2016, 3) == []


def test_problems_are_found():
    assert problems([[0, 1], [1, 2]], 4, 2) == ["rank 1 is in two groups", "rank 3 is in no group"]
    assert problems([[0], [1, 5]], 2, 2) == ["[0] has 1 ranks, not 2", "there is no rank 5"]


def test_open_degree_takes_what_is_left():
    assert make_mesh(HybridConfig(tensor=2), 8).degrees["data"] == 4
    assert num_processes(HybridConfig(tensor=2)) == 2
    assert num_processes(HybridConfig(tensor=2, data=3)) == 6


@pytest.mark.parametrize(
    ("values", "world", "key"),
    [
        ({"data": 3}, 2, "parallel.data"),
        ({"data": 1}, 2, "parallel.data"),
        ({"tensor": 3}, 4, "parallel.tensor"),
        ({"sharding": 4}, 2, "parallel.sharding"),
        ({"sharding_stage": 2}, 2, "parallel.sharding_stage"),
    ],
)
def test_impossible_degrees_are_refused_by_their_key(values, world, key):
    with pytest.raises(ConfigError) as caught:
        make_mesh(HybridConfig(**values), world)
    assert [p.key for p in caught.value.problems] == [key]


#: axes of the table on the page, and how settings use them
USED = {
    **{axis: {axis: 2} for axis in ("data", "sharding", "tensor", "expert", "context", "pipeline")},
    "sharding_stage 3": {"sharding": 2, "sharding_stage": 3},
    "sequence": {"tensor": 2, "sequence": True},
}


def product(one, other):
    """What the page says of two axes, by whether a mesh is made of them."""
    if USED[one].items() < USED[other].items():
        return "needs it"
    config = HybridConfig(**USED[one], **{key: value for key, value in USED[other].items() if key not in USED[one]})
    try:
        make_mesh(config, num_processes(config) * (1 if config.data else 2))  # two ranks with rows of their own
    except ConfigError:
        return "refused"
    return "works"


def test_the_page_has_the_table_of_products():
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "parallel.md").read_text(encoding="utf-8")
    lines = page[page.index("## Which axes combine") :].splitlines()[2:]
    header, _, *rows = lines[: lines.index("")]
    columns = header.replace(" ", "").replace("stage3", "stage 3").strip("|").split("|")
    found = {}
    for line in rows:
        one, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found |= {(one, other): cell for other, cell in zip(columns, cells, strict=True) if cell}
    assert len(found) == len(USED) * (len(USED) - 1) // 2
    assert found == {pair: product(*pair) for pair in found}
