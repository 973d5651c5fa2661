"""A search that leaves out what cannot be among the best finds what a search of everything finds."""

from dataclasses import replace

import pytest
from erniecore_planner import layout_search
from erniecore_planner.clusters import GB, Cluster, Machines, uniform
from erniecore_planner.jobs import Job
from erniecore_planner.layout_bounds import least_time
from erniecore_planner.layout_search import assess_choices, best_of, every_layout, search, sizes_of
from erniecore_planner.layout_time import step_time
from erniecore_planner.layouts import choices

from erniecore.api.command import layout_spaces
from erniecore.api.model import DecoderShape, LayerShape

DENSE = LayerShape(heads=8, kv_heads=4, head_dim=64, mlp=2048)
SPARSE = LayerShape(heads=8, kv_heads=4, head_dim=64, mlp=512, experts=16, selected=4, expert=512)
SHAPE = DecoderShape(hidden=512, vocab=32768, tied=True, layers=(DENSE, *(SPARSE,) * 7), mtp_layers=(SPARSE,))
SPACE = dict(layout_spaces(SHAPE))["hybrid"]
GPU = Machines(1, 4, "accelerator", 6 * GB, 50e12, bandwidth=1e12, link=100e9, host_memory=64 * GB)
SLOW = replace(GPU, count=2, flops=20e12, bandwidth=2e11, link=20e9, price=0.3)
CLUSTERS = {
    "uniform": uniform(24, GPU),
    "small": uniform(24, replace(GPU, memory=3 * GB)),
    "mixed": Cluster((replace(GPU, count=2), SLOW), network=5e9),
    "no host memory": uniform(16, replace(GPU, memory=4 * GB, host_memory=0)),
}
JOBS = {
    "full": {},
    "adapter": {"adapter": 10_000_000, "weight": 0.55},
    "reference": {"copies": 1, "forward": 1, "length": 4096},
}


def job(**changes):
    return Job(**{"shape": SHAPE, "length": 8192, "micro": 1, "rows": 48, **changes})


def everything(wanted, cluster, sizes, uneven):
    """What :func:`search` is to find, by assessing all degrees."""
    fitting, large, tried = [], [], 0
    for part, chosen in every_layout(wanted, SPACE, cluster, sorted(sizes), uneven=uneven):
        *lacking, last = assess_choices(wanted, SPACE, part, chosen)
        large += lacking
        (fitting if last.fits else large).append(last)
        tried += 1
    return best_of(fitting, large, tried)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("changes", JOBS)
@pytest.mark.parametrize("uneven", [False, True])
def test_nothing_that_is_told_is_left_out(cluster, changes, uneven):
    wanted, machines = job(**JOBS[changes]), CLUSTERS[cluster]
    found = search(wanted, SPACE, machines, uneven=uneven)
    every = everything(wanted, machines, sizes_of(machines), uneven)
    for name in ("fastest", "cheapest", "lowest_memory", "runners_up", "tried"):
        assert getattr(found, name) == getattr(every, name), name
    assert [x.free for x in found.too_large] == [x.free for x in every.too_large]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_no_choice_is_faster_than_its_bound(cluster):
    wanted, machines, near = job(), CLUSTERS[cluster], 0
    for part, chosen in every_layout(wanted, SPACE, machines, sizes_of(machines)):
        bound = least_time(wanted, part, chosen)
        best = min(step_time(wanted, part, *one).total for one in choices(SPACE, chosen, offload=True))
        assert 0.1 * best < bound <= best
        near += bound > 0.9 * best
    assert near > 20


def test_most_degrees_of_thousands_of_accelerators_are_not_assessed(monkeypatch):
    assessed = []
    real = layout_search.assess_choices
    monkeypatch.setattr(layout_search, "assess_choices", lambda *a, **k: assessed.append(1) or real(*a, **k))
    shape = replace(SHAPE, layers=(replace(DENSE, heads=64, kv_heads=8),) * 32, mtp_layers=())
    space = dict(layout_spaces(shape))["hybrid"]
    found = search(job(shape=shape, rows=2048), space, uniform(2048, GPU), [2**n for n in range(12)])
    assert found.tried > 500
    assert len(assessed) < 0.4 * found.tried
