"""Places of ranks: against every permutation on small clusters, never worse than the order of the file, and what is said."""

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import yaml
from erniecore_planner.arrangements import MOST, arrangements, number_of
from erniecore_planner.clusters import GB, LATENCY_FAR, Cluster, Machines, read_cluster, uniform
from erniecore_planner.jobs import Job
from erniecore_planner.layout_search import assess, every_layout, search, sizes_of
from erniecore_planner.layouts import Options
from erniecore_planner.links import Links, groups_of
from erniecore_planner.placed_layouts import counted, place, placed_search
from erniecore_planner.placement import Placer, axis_orders, best_places, nested, place_of
from erniecore_planner.traffic import rank_map
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.api import UsageError
from erniecore.api.command import layout_spaces
from erniecore.api.model import DecoderShape, LayerShape
from erniecore.api.planning import ParallelLayout
from erniecore.cli.app import main

DENSE = LayerShape(heads=8, kv_heads=4, head_dim=64, mlp=2048)
SPARSE = LayerShape(heads=8, kv_heads=4, head_dim=64, mlp=512, experts=16, selected=4, expert=512)
SHAPE = DecoderShape(hidden=512, vocab=32768, tied=False, layers=(DENSE, *(SPARSE,) * 7))
SPACE = dict(layout_spaces(SHAPE))["hybrid"]
ONE = Machines(1, 1, "accelerator", 80 * GB, 50e12, bandwidth=1e12, link=100 * GB)
JOB = Job(SHAPE, length=8192, micro=1, rows=16)


def matrix(rates):
    """Bytes per second between machines; ``rates``: pair -> GB/s, of the others 1."""
    size = 1 + max(max(pair) for pair in rates)
    found = [[1.0 * GB] * size for _ in range(size)]
    for (one, other), rate in rates.items():
        found[one][other] = found[other][one] = rate * GB
    return tuple(map(tuple, found))


def placer(cluster, layout, option=None):
    layout = replace(layout, split=SPACE.split(layout))
    return Placer(JOB, SPACE, cluster, layout, option or Options(), Links(cluster))


def machines(draw, number, most):
    """Machines that differ in speed, number of accelerators and links."""
    rates = st.sampled_from([1, 5, 25, 100])
    return tuple(
        replace(
            ONE,
            accelerators=draw(st.integers(1, most)),
            flops=draw(st.sampled_from([10e12, 50e12])),
            memory=draw(st.sampled_from([6, 80])) * GB,
            link=draw(rates) * GB,
            network=draw(st.sampled_from([0, 2, 50])) * GB,
        )
        for _ in range(number)
    )


@st.composite
def clusters(draw, number, most):
    size = draw(number)
    pairs = {(i, j): draw(st.sampled_from([1, 5, 25, 100])) for i in range(size) for j in range(i)}
    links = matrix(pairs) if draw(st.booleans()) and pairs else ()
    return Cluster(machines(draw, size, most), 10 * GB, links)


def layouts(cluster):
    """Of all its accelerators."""
    return [layout for _, layout in every_layout(JOB, SPACE, cluster, [cluster.size])]


few = settings(deadline=None, max_examples=25, derandomize=True)


@few
@given(clusters(st.integers(2, 3), 2), st.data())
def test_small_clusters_have_the_best_of_all_permutations(cluster, data):
    found = layouts(cluster)
    if not found:
        return
    every = placer(cluster, data.draw(st.sampled_from(found)))
    if every.chosen.size > 5:
        return
    best = every.seconds(best_places(every))
    places = [np.array(at) for at in permutations(range(every.chosen.size))]
    fitting = [every.seconds(at) for at in places if every.fits(at, True)]
    least = min([*fitting, every.seconds(every.file_order)])
    assert best == pytest.approx(least, rel=1e-8)


@few
@given(clusters(st.integers(1, 5), 4), st.data(), st.booleans())
def test_no_placement_is_slower_than_the_order_of_the_file(cluster, data, exact):
    found = layouts(cluster)
    if not found:
        return
    every = placer(cluster, data.draw(st.sampled_from(found)))
    at = best_places(every, exact=None if exact else False)
    assert sorted(at.tolist()) == list(range(every.chosen.size))
    assert every.seconds(at) <= every.seconds(every.file_order)


@few
@given(clusters(st.integers(2, 4), 3), st.data())
def test_the_same_cluster_has_the_same_placement(cluster, data):
    found = layouts(cluster)
    if found:
        layout = data.draw(st.sampled_from(found))
        first, second = (best_places(placer(replace(cluster), layout)) for _ in range(2))
        assert first.tolist() == second.tolist()


def test_partners_take_the_fast_links():
    """Machines 0 and 2, and 1 and 3, are joined well; listed in this order, tensor ranks are not."""
    cluster = Cluster((replace(ONE, count=4),), links=matrix({(0, 2): 100, (1, 3): 100}))
    layout = ParallelLayout(tensor=2, data=2)
    for exact in (True, False):
        every = placer(cluster, layout)
        at = best_places(every, exact=exact)
        assert {frozenset(pair) for pair in at[groups_of(layout)["tensor"]].tolist()} == {
            frozenset({0, 2}),
            frozenset({1, 3}),
        }
        assert every.seconds(at) < every.seconds(every.file_order) / 2


def test_stages_within_a_machine_where_there_is_more_between_them_than_between_replicas():
    cluster = uniform(4, replace(ONE, accelerators=2), network=1 * GB)
    layout, adapter = ParallelLayout(pipeline=2, data=2), replace(JOB, adapter=100_000)
    every = Placer(adapter, SPACE, cluster, replace(layout, split=SPACE.split(layout)), Options(), Links(cluster))
    assert counted(layout, best_places(every)) == (("pipeline", "data"), ())


def test_a_slow_machine_is_one_stage_and_not_a_part_of_each():
    slow = replace(ONE, accelerators=2, flops=10e12)
    cluster = Cluster((replace(slow, accelerators=1), replace(ONE, accelerators=2), replace(slow, accelerators=1)))
    every = placer(cluster, ParallelLayout(pipeline=2, data=2))
    at = best_places(every)
    assert {frozenset(at[:2].tolist()), frozenset(at[2:].tolist())} == {frozenset({0, 3}), frozenset({1, 2})}
    _, layout, _ = every.of(at)
    assert min(layout.split) < max(layout.split)


def test_what_does_not_fit_is_not_chosen():
    small, large = replace(ONE, memory=2 * GB), replace(ONE, memory=80 * GB, flops=10e12)
    cluster = Cluster((small, large))
    every = placer(cluster, ParallelLayout(pipeline=2))
    for at in (np.array([0, 1]), np.array([1, 0])):
        time, layout, seen = every.of(at)
        assert every.fits(at, True) is assess(JOB, seen, layout, Options(), time=time).fits
    at = best_places(every)
    assert every.fits(at, True) or at.tolist() == [0, 1]


@few
@given(clusters(st.integers(1, 3), 3))
def test_every_arrangement_is_counted(cluster):
    links = Links(cluster)
    found = arrangements(links, MOST)
    assert len({tuple(row) for row in found.tolist()}) == len(found) == number_of(links)
    assert all(sorted(row) == list(range(links.size)) for row in found.tolist())


def test_places_of_equal_machines_are_tried_once():
    assert len(arrangements(Links(uniform(4, replace(ONE, accelerators=2))), MOST)) == 3
    assert len(arrangements(Links(Cluster((ONE, replace(ONE, flops=1e12)))), MOST)) == 2
    assert arrangements(Links(uniform(64, replace(ONE, accelerators=8))), MOST) is None


def test_rates_are_those_of_the_file():
    inner = ((0.0, 3.0, 2.0), (3.0, 0.0, 1.0), (2.0, 1.0, 0.0))
    one, other = replace(ONE, accelerators=3, links=inner), replace(ONE, accelerators=2, links=((0.0, 9.0), (9.0, 0.0)))
    cluster = Cluster((one, replace(ONE, accelerators=2, network=5.0), replace(other, count=2)), 7.0)
    links = Links(cluster)
    far = [[links.rates(np.array([i]), np.array([j]))[0] for j in range(9)] for i in range(9)]
    assert far[0][1:3] == [3.0, 2.0]
    assert far[2][1] == 1.0
    assert far[3][4] == ONE.link
    assert (far[5][6], far[7][8]) == (9.0, 9.0)
    assert (far[0][3], far[0][5], far[6][7]) == (5.0, 7.0, 7.0)
    near = links.latencies(np.array([0, 0]), np.array([1, 3]))
    assert near.tolist() == [ONE.latency, LATENCY_FAR]


@pytest.mark.parametrize("links", [(), matrix({(0, 3): 7, (1, 2): 5, (0, 1): 3})])
def test_links_of_large_clusters_are_those_of_small_ones(links, monkeypatch):
    cluster = Cluster((replace(ONE, count=4, accelerators=4, network=2 * GB),), links=links)
    layout = ParallelLayout(tensor=2, sharding=2, data=2, pipeline=2)
    rng = np.random.default_rng(0)
    places = [np.arange(16), *(rng.permutation(16) for _ in range(20))]
    by_pairs = [Links(cluster).slowest(at[groups]) for at in places for groups in groups_of(layout).values()]
    monkeypatch.setattr("erniecore_planner.links._PAIRS", 0)
    by_machines = [Links(cluster).slowest(at[groups]) for at in places for groups in groups_of(layout).values()]
    assert by_pairs == by_machines


@given(st.sampled_from([(1, 2, 2, 2, 1), (2, 1, 2, 1, 3), (2, 2, 1, 2, 2)]), st.randoms())
def test_order_and_ranks_say_what_was_chosen(degrees, random):
    layout = ParallelLayout(*degrees)
    ranks = list(range(layout.size))
    random.shuffle(ranks)
    for order in axis_orders(layout):
        at = nested(layout, order, np.array(ranks))
        said, numbers = counted(layout, at)
        again = nested(layout, said or next(axis_orders(layout)), np.array(numbers or range(layout.size)))
        assert again.tolist() == at.tolist()


def test_a_rank_has_the_memory_of_its_stage():
    layout = ParallelLayout(tensor=2, pipeline=2, ranks=(2, 3, 0, 1))
    assert [place_of(layout, rank) for rank in range(4)] == [2, 3, 0, 1]
    layout = ParallelLayout(tensor=2, pipeline=2, order=("pipeline", "tensor"))
    assert [place_of(layout, rank) for rank in range(4)] == [0, 2, 1, 3]


def test_ranks_of_a_run_are_at_the_places_of_the_plan():
    """The grid that `hybrid` makes of the settings is the one whose time was planned."""
    from erniecore_hybrid_parallel.planning import make_mesh

    cluster = Cluster((replace(ONE, count=4, accelerators=2),), links=matrix({(0, 2): 100, (1, 3): 100}))
    for layout in layouts(cluster):
        every = placer(cluster, layout)
        at = best_places(every)
        order, ranks = counted(layout, at)
        mesh = make_mesh(replace(layout, order=order, ranks=ranks), layout.size)
        assert [rank for rank, _ in mesh.places()] == at.tolist()
        named = {
            "tensor": mesh.groups("tensor"),
            "expert": mesh.expert_groups(),
            "data_size": mesh.groups("sharding", "data"),
        }
        for axis, groups in named.items():
            planned = {frozenset(group) for group in at[groups_of(layout)[axis]].tolist()}
            assert planned == {frozenset(group) for group in groups}, axis


def test_the_fastest_layout_is_that_of_placed_ranks():
    cluster = Cluster((replace(ONE, count=4, accelerators=2),), links=matrix({(0, 2): 100, (1, 3): 100}))
    sizes = sizes_of(cluster)
    before, after = search(JOB, SPACE, cluster, sizes), placed_search(JOB, SPACE, cluster, sizes)
    assert after.fastest.time.total < before.fastest.time.total
    assert after.fastest.placement.seconds == after.fastest.time.total <= after.fastest.placement.file_order
    assert [a.time.total for a in after.runners_up] == sorted(a.time.total for a in after.runners_up)


def test_a_gain_of_next_to_nothing_changes_no_settings():
    cluster = Cluster((ONE, replace(ONE, network=NEARLY)), 100 * GB)
    layout = ParallelLayout(pipeline=2, split=SPACE.split(ParallelLayout(pipeline=2)))
    found = place(JOB, SPACE, Links(cluster), assess(JOB, cluster, layout, Options()))
    assert (found.layout.order, found.layout.ranks) == ((), ())
    assert found.placement.at == (0, 1)


NEARLY = 99.999 * GB


def test_traffic_is_what_the_times_are_made_of():
    cluster = uniform(8, replace(ONE, accelerators=4), network=1 * GB)
    layout = ParallelLayout(tensor=2, pipeline=2, sharding=2, split=SPACE.split(ParallelLayout(pipeline=2)))
    found = place(JOB, SPACE, Links(cluster), assess(JOB, cluster, layout, Options()))
    sent = {row.axis: row for row in found.placement.traffic}
    assert {*sent} == {"tensor", "pipeline", "gradients"}
    assert sent["tensor"].rate == 100 * GB
    assert sent["tensor"].machines == 1
    assert sent["gradients"].seconds == found.time.gradients > sent["gradients"].size / sent["gradients"].rate
    assert sum(row.seconds for row in sent.values()) < found.time.total


def test_the_map_has_every_rank_on_its_machine():
    cluster = Cluster((replace(ONE, accelerators=2), replace(ONE, count=2, accelerators=1)))
    layout = ParallelLayout(tensor=2, pipeline=2)
    found = dict(rank_map(layout, Links(cluster), np.array([2, 3, 1, 0])))
    assert found == {
        "machine 0 (accelerator), ranks 0-1": "stage 1, tensor 0-1",
        "machine 1 (accelerator), rank 2": "stage 0, tensor 0",
        "machine 2 (accelerator), rank 3": "stage 0, tensor 1",
    }


ROW = {"count": 2, "accelerators": 2, "accelerator": "A100", "memory": 80, "tflops": 312}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"machines": [ROW], "links": [[0, 1]]}, "links is not a matrix"),
        ({"machines": [ROW], "links": [[0, 1], [2, 0]]}, "a link has two rates"),
        ({"machines": [ROW], "links": [[0, "x"], ["x", 0]]}, "is not a number above 0"),
        ({"machines": [{**ROW, "links": [[0]]}]}, "links is not a matrix"),
        ({"machines": [{**ROW, "network": 0}]}, "network is not a number above 0"),
    ],
)
def test_links_that_are_none_are_refused(document, text):
    with pytest.raises(UsageError, match=text):
        read_cluster(document, "cluster.yaml")


def test_links_are_read():
    row = {**ROW, "links": [[0, 300], [300, 0]], "network": 12}
    cluster = read_cluster(
        {"machines": [row, ROW], "network": 25, "links": [[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]]}, "x"
    )
    assert cluster.links[1][3] == 5 * GB
    assert (cluster.machines[0].link, cluster.machines[0].network) == (300 * GB, 12 * GB)
    assert cluster.slowest_network == 1 * GB
    assert len(cluster.first(4).links) == 2


def test_plan_says_where_ranks_are_and_the_settings_for_it(tmp_path, capsys):
    machines = [{"count": 4, "accelerators": 1, "accelerator": "A100", "memory": 80, "tflops": 312}]
    links = [[0, 0.1, 50, 0.1], [0.1, 0, 0.1, 50], [50, 0.1, 0, 0.1], [0.1, 50, 0.1, 0]]
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump({"machines": machines, "links": links}))
    command = ["plan", "--model", "ernie45", "model.size=0.3b", "--method", "sft", "--device", "cuda"]
    command += ["--parallel", "hybrid", "parallel.tensor=2", "parallel.data=2", "train.precision=bfloat16"]
    command += ["--cluster", str(tmp_path / "cluster.yaml")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["given"]
    assert found["settings"].split()[-2:] == ["parallel.order=[data,tensor]", "train.recompute=none"]
    assert found["placement"]["at"] == [0, 2, 1, 3]
    assert found["placement"]["seconds"] < found["placement"]["file_order"] / 5
    assert [row["axis"] for row in found["placement"]["traffic"]] == ["gradients", "tensor"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "machine 1 (A100), rank 1: data 1, tensor 0" in text
    assert "per rank and step" in text
