"""Ranks at other places of the grid (``parallel.order``, ``parallel.ranks``): who is with whom, what is refused, and that a run
computes the same.
"""

from dataclasses import replace
from itertools import permutations

import pytest
import yaml
from erniecore_conformance.processes import on_ranks
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.layouts import HybridLayouts
from erniecore_hybrid_parallel.mesh import AXES, BATCH, Mesh, problems
from erniecore_hybrid_parallel.planning import listed_ranks, make_mesh, rank_ranges
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.api import ConfigError
from erniecore.api.parallel import DecoderShape, LayerShape
from erniecore.api.planning import ParallelLayout

HELPERS = __file__.replace("test_hybrid_places.py", "hybrid_helpers.py")
few = settings(deadline=None, max_examples=30)
degree = st.integers(1, 3)


@st.composite
def meshes(draw):
    degrees = dict(zip(AXES, draw(st.tuples(*[degree] * 5)), strict=True))
    size = Mesh(degrees).size
    ranks = draw(st.permutations(range(size))) if draw(st.booleans()) else ()
    return Mesh(degrees, 1, tuple(draw(st.permutations(AXES))), tuple(ranks))


@few
@given(meshes())
def test_every_rank_has_one_place(mesh):
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    assert [mesh.rank_at(place) for place in places] == list(range(mesh.size))
    assert dict(mesh.places()) == dict(enumerate(places))


@few
@given(meshes())
def test_groups_are_in_the_order_of_places(mesh):
    for axis in AXES:
        assert problems(mesh.groups(axis), mesh.size, mesh.degrees[axis]) == []
        for group in mesh.groups(axis):
            assert [mesh.coordinates(rank)[axis] for rank in group] == list(range(mesh.degrees[axis]))
    for group in mesh.groups(*BATCH):
        assert [mesh.data_rank(rank) for rank in group] == list(range(mesh.data_size))


def test_axes_are_nested_as_they_are_listed():
    config = HybridConfig(tensor=2, pipeline=2, sharding=2, order=("tensor", "pipeline", "sharding"))
    mesh = make_mesh(config, 8)
    assert mesh.groups("tensor")[0] == [0, 1]
    assert mesh.groups("pipeline")[0] == [0, 2]
    assert mesh.groups("sharding")[0] == [0, 4]


def test_ranks_are_at_the_places_that_are_listed():
    mesh = make_mesh(HybridConfig(tensor=2, ranks=("4-7", "0-3")), 8)
    assert mesh.groups("tensor") == [[4, 5], [6, 7], [0, 1], [2, 3]]
    assert mesh.data_rank(0) == 2


@given(st.permutations(range(12)))
def test_ranges_are_read_as_they_are_written(ranks):
    words = yaml.safe_load(f"[{','.join(map(str, rank_ranges(ranks)))}]")
    expected = () if ranks == sorted(ranks) else tuple(ranks)
    assert listed_ranks(HybridConfig(ranks=tuple(words)), 12) == expected


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"order": ("tensor",)}, "parallel.order", "lacks data"),
        ({"order": ("tensor", "tensor", "data")}, "parallel.order", "has an axis twice"),
        ({"ranks": (0, 1, 2)}, "parallel.ranks", "rank 3 is missing"),
        ({"ranks": (0, 1, 2, 3, 3)}, "parallel.ranks", "some are there twice"),
        ({"ranks": ("0-4",)}, "parallel.ranks", "'0-4' is neither"),
        ({"ranks": (-1, 0, 1, 2, 3)}, "parallel.ranks", "-1 is neither"),
    ],
)
def test_what_is_no_order_is_refused_by_its_key(values, key, text):
    with pytest.raises(ConfigError) as caught:
        make_mesh(HybridConfig(tensor=2, **values), 4)
    [problem] = caught.value.problems
    assert problem.key == key
    assert text in problem.message


def test_settings_take_ranks_and_ranges_alone():
    assert HybridConfig(ranks=("2-3", 0, 1)).ranks == ("2-3", 0, 1)
    with pytest.raises(ValueError, match="ranks"):
        HybridConfig(ranks=("1-x",))


def test_settings_give_a_run_the_places_of_a_layout():
    shape = DecoderShape(hidden=512, vocab=32768, tied=False, layers=(LayerShape(8, 4, 64, 2048),) * 4)
    space = HybridLayouts(HybridConfig(), shape)
    for ranks in ((), (2, 3, 0, 1), (3, 1, 2, 0)):
        for order in ((), *permutations(("tensor", "pipeline"))):
            layout = ParallelLayout(tensor=2, pipeline=2, order=order, ranks=ranks)
            words = {
                key.removeprefix("parallel."): yaml.safe_load(value)
                for key, _, value in (word.partition("=") for word in space.overrides(layout))
            }
            assert replace(HybridLayouts(HybridConfig(**words), shape).selected(4), split=()) == layout
    placed = HybridLayouts(HybridConfig(tensor=2, ranks=(1, 0)), shape)
    assert "parallel.ranks=[]" in placed.overrides(ParallelLayout(tensor=2))


#: (model and options of one process, layout of four, where its ranks are)
CASES = [
    ("moe", {"tensor": 2, "data": 2}, {"ranks": "[2,0,3,1]"}),
    ("moe", {"data": 2, "sharding": 2, "expert": 2, "sharding_stage": 2}, {"ranks": "[3,1,2,0]"}),
    ("moe", {"sharding": 2, "data": 2, "expert": 4}, {"order": "[data,sharding]"}),
    ("untied", {"tensor": 2, "sharding": 2, "sharding_stage": 3}, {"ranks": "[1,2,0,3]"}),
    ("untied", {"pipeline": 2, "data": 2}, {"order": "[pipeline,data]"}),
    ("untied", {"pipeline": 2, "tensor": 2}, {"ranks": "[3,2,1,0]", "order": "[pipeline,tensor]"}),
    ("untied", {"context": 2, "tensor": 2, "sequence": "true"}, {"ranks": "[1,3,0,2]"}),
]


@pytest.mark.multiproc
@pytest.mark.slow
def test_a_run_computes_the_same_wherever_its_ranks_are(words, compared, tmp_path):
    import erniecore

    alone = {name: {"model": name, "train__accumulation": 2} for name in ("moe", "untied")}
    batches = {1: (2, 2), 2: (1, 2), 4: (1, 1)}  # ranks with rows of their own -> accumulation, rows of a micro-batch
    final = {"checkpoint__export": "false"}
    for name, options in alone.items():
        erniecore.run(overrides=words(tmp_path / name, **options, **final), console="none")
    runs = []
    for number, (name, degrees, places) in enumerate(CASES):
        count, size = batches[int(degrees.get("data", 1)) * int(degrees.get("sharding", 1))]
        layout = {f"parallel__{key}": value for key, value in {**degrees, **places, "name": "hybrid"}.items()}
        step = {"model": name, "train__accumulation": count, "train__batch_size": size}
        runs.append(words(tmp_path / f"{number}", **step, **layout, **final))
    on_ranks(4, f"{HELPERS}:runs", runs, limit=1800.0)
    for number, (name, *_) in enumerate(CASES):
        compared(tmp_path / name, tmp_path / f"{number}").assert_close()
