"""Layouts that are offered are layouts that run, with the split that is planned."""

from types import SimpleNamespace

import pytest
import yaml
from erniecore_planner.clusters import GB, Cluster, Machines, uniform
from erniecore_planner.jobs import Job
from erniecore_planner.layout_plan import settings_text
from erniecore_planner.layout_search import every_layout
from erniecore_planner.layout_time import stages
from erniecore_planner.layouts import Options

from erniecore.api.command import layout_spaces, load_settings, planned_run
from erniecore.api.model import DecoderShape, LayerShape
from erniecore.api.planning import ParallelLayout

SHAPE = DecoderShape(hidden=64, vocab=128, tied=True, layers=(LayerShape(4, 4, 16, 128),) * 4)
HYBRID = dict(layout_spaces(SHAPE))["hybrid"]


@pytest.mark.parametrize(
    ("layout", "runs"),
    [
        (ParallelLayout(pipeline=2, sharding=2), True),
        (ParallelLayout(pipeline=2, sharding=2, sharding_stage=3, prefetch=1), True),
        (ParallelLayout(sharding=2, expert=2), False),  # no experts
        (ParallelLayout(pipeline=8), False),  # more stages than layers
        (ParallelLayout(pipeline=2, context=2), True),
        (ParallelLayout(tensor=2, pipeline=2, sequence=True), True),
        (ParallelLayout(tensor=2, context=2, sequence=True), True),
    ],
)
def test_what_the_strategy_refuses_is_not_offered(layout, runs):
    offered = [variant for found in HYBRID.layouts(layout.size) for variant in HYBRID.variants(found)]
    assert (layout in offered) is runs


def test_state_on_the_host_is_a_setting():
    found = SimpleNamespace(layout=ParallelLayout(sharding=2, sharding_stage=2), options=Options("full", True))
    assert settings_text(HYBRID, found).split() == [
        "parallel.sharding=2",
        "parallel.sharding_stage=2",
        "optimizer.offload=true",
        "train.recompute=full",
    ]


def test_one_process_has_one_layout():
    single = dict(layout_spaces(SHAPE))["single"]
    assert [list(single.layouts(n)) for n in (1, 2)] == [[ParallelLayout()], []]
    assert (single.split(ParallelLayout()), single.overrides(ParallelLayout())) == ((), ())


MODELS = [("ernie45", "0.3b"), ("ernie45-moe", "21b-a3b"), ("ernie45-moe", "300b-a47b"), ("ernie45-vl", "28b-a3b")]


def run_of(model, size, *args):
    flags = {"model": model, "method": "sft", "parallel": "hybrid", "device": "cuda"}
    return planned_run(load_settings(None, [f"model.size={size}", "run.out=x", *args], flags))[0]


@pytest.mark.parametrize(("model", "size"), MODELS)
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_the_planned_split_is_that_of_the_run(model, size, count):
    """Also of machines that differ, where the settings that are offered list it."""
    planned = run_of(model, size)
    job = Job(planned.shape, 8192, 1, 8)
    even = Machines(count, 1, "", 80 * GB, 300e12)
    mixed = Cluster((Machines(1, 1, "", 80 * GB, 300e12), Machines(count - 1, 1, "", 80 * GB, 100e12)))
    found = []
    for cluster in (uniform(count, even), mixed):
        [layout] = [
            layout for _, layout in every_layout(job, planned.layouts, cluster, [count]) if layout.pipeline == count
        ]
        run = run_of(model, size, *planned.layouts.overrides(layout))
        assert run.layout.split == layout.split
        assert len(layout.split) == count
        assert sum(layout.split) == len(planned.shape.layers) == stages(job, layout)[-1][1]
        found.append(layout.split)
    assert found[1][0] > found[0][0]


def test_virtual_stages_are_split_as_the_run_splits_them():
    run = run_of("ernie45", "0.3b", "parallel.pipeline=2", "parallel.chunks=3")
    assert len(run.layout.split) == 6
    assert run.layouts.split(run.layout) == run.layout.split
    listed = run_of("ernie45", "0.3b", "parallel.pipeline=2", "parallel.split=[10,8]")
    assert listed.layout.split == (10, 8)
    assert yaml.safe_load(listed.layouts.overrides(listed.layout)[-1].partition("=")[2]) == [10, 8]
