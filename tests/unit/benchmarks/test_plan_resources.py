"""The resource table of ERNIEKit's documentation: the plan says that a run fits where they say that it runs."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from erniecore_planner.clusters import GB, Machines, uniform
from erniecore_planner.layout_search import first_fit

SPEC = spec_from_file_location("plan_resources", Path(__file__).parents[3] / "benchmarks" / "plan_resources.py")
table = module_from_spec(SPEC)
sys.modules["plan_resources"] = table  # dataclasses look their module up
SPEC.loader.exec_module(table)


def fit(row):
    accelerator = Machines(1, 8, "", row.memory * GB, 445e12, 3.35e12, link=200 * GB, host_memory=row.host * GB)
    job = table.job_of(row)
    return first_fit(job, table.space_of(job), uniform(row.accelerators, accelerator))


def label(row):
    return f"{row.model}-{row.what}-{row.length}-{row.accelerators}x{row.memory}".replace(" ", "-")


@pytest.mark.parametrize("row", table.ROWS, ids=label)
def test_what_runs_for_them_fits(row):
    found = fit(row)
    assert (found is None) == (row in table.TIGHT)


@pytest.mark.parametrize("row", table.IMPOSSIBLE, ids=label)
def test_what_cannot_be_does_not_fit(row):
    assert fit(row) is None


def test_vision_language_models_by_arithmetic():
    """A second stack of experts and a router for it in each sparse layer, as the configurations say."""
    for recipe, width, billions in (("21b-a3b", 512, "28.62"), ("300b-a47b", 1536, "422.72")):
        shape = table.shape_of(recipe)
        sparse = [layer for layer in shape.layers if layer.experts]
        more = sum(3 * shape.hidden * width * x.experts + shape.hidden * x.experts + x.experts for x in sparse)
        assert f"{(table.total_parameters(shape) + more) / 1e9:.2f}" == billions
