"""A forecast is optional: the first installed forecaster that has one is heard, and none that fails ends a run."""

import json

import pytest
from erniecore_catalog import install_command

from erniecore.cli.app import main
from erniecore.engine.preparation.forecast import layout_of
from erniecore.types.layouts import ParallelLayout
from erniecore.types.run import Cluster, ParallelPlan

WORDS = ("run", "--dry-run", "--model", "ernie45", "model.size=tiny", "--method", "sft")
NEEDED = "ernie45,sft,formats"
FORECASTER = """
    from erniecore.api import Plugin, hookimpl
    from erniecore.api.planning import Forecast

    class Oracle(Plugin):
        kind = "forecaster"
        summary = "knows"

        def __init__(self, name, answer):
            self.name, self.answer = name, answer

        @hookimpl
        def ernie_forecast(self, run):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    a_silent = Oracle("a-silent", None)
    b_wrong = Oracle("b-wrong", ZeroDivisionError("no layers"))
    c_sure = Oracle("c-sure", Forecast(peak_memory=3 << 20, step_seconds=0.25))
"""


@pytest.fixture
def oracles(site, monkeypatch):
    """Installs forecasters by the names of their objects; the planner is hidden."""

    def install(*names):
        points = {name.replace("_", "-"): f"oracles:{name}" for name in names}
        site.add("oracles", {"erniecore.forecasters": points}, {"oracles.py": FORECASTER})
        monkeypatch.setenv("ERNIE_PLUGINS", f"{NEEDED},oracles")

    return install


def test_a_run_needs_no_forecaster(capsys, monkeypatch):
    monkeypatch.setenv("ERNIE_PLUGINS", NEEDED)
    assert main([*WORDS]) == 0
    assert "forecast" not in capsys.readouterr().out
    assert main([*WORDS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forecast"] is None
    assert main(["plan", *WORDS[2:]]) == 2
    assert install_command("erniecore-planner") in capsys.readouterr().err


def test_the_first_forecast_is_in_the_plan(oracles, capsys):
    oracles("a_silent", "c_sure")
    assert main([*WORDS]) == 0
    assert "forecast  peak 3.0 MiB with activations, about 250 ms per step" in capsys.readouterr().out


def test_a_forecaster_that_fails_is_a_warning(oracles, maker):
    oracles("b_wrong", "c_sure")
    ready = maker.ready()
    assert ready.plan.forecast.peak_memory == 3 << 20
    assert ready.warnings[-1] == "no forecast: forecaster b-wrong failed with ZeroDivisionError: no layers"


def test_a_strategy_that_publishes_nothing_is_planned_by_its_degrees():
    plan = ParallelPlan({"data": 2, "pipeline": 2, "ring": 1}, data_size=2, split=(3, 1))
    found = layout_of(None, plan, Cluster(world_size=4))
    assert found == ParallelLayout(data=2, pipeline=2, split=(3, 1))
    assert (found.size, found.data_size) == (4, 2)
