"""Wheels of the core and some plugins in an environment of their own: what is listed, and that it starts."""

import json

import pytest

CHOSEN = ("erniecore", "erniecore-conformance", "erniecore-ernie45", "erniecore-sft")
pytestmark = pytest.mark.install


@pytest.fixture(scope="module")
def environment(wheels, needed, make_environment):
    return make_environment([wheels[name] for name in needed(CHOSEN)])


def test_only_what_was_chosen_is_listed(environment):
    listed = json.loads(environment.run("ernie", "plugins", "--json"))
    assert {entry["distribution"] for entry in listed} == set(CHOSEN)  # libraries come too, but are not listed
    assert {entry["status"] for entry in listed} == {"ok"}
    assert ("model", "ernie45") in {(entry["kind"], entry["name"]) for entry in listed}


def test_what_is_missing_is_named_with_its_home(environment):
    environment.variables["NO_COLOR"] = "1"
    out = environment.run("ernie", "conform", "model", "ernie45-moe", "--json", status=2)
    assert "erniecore-ernie45-moe" in out


def test_code_comes_from_the_wheel(environment):
    out = environment.run("python", "-c", "import erniecore, erniecore_sft; print(erniecore.__file__)")
    assert out.startswith(str(environment.home))


def test_help_and_version(environment):
    assert "Commands" in environment.run("ernie", "--help")
    assert "0.1.0" in environment.run("ernie", "version")


def test_new_plugin_finds_its_templates(environment, tmp_path):
    out = environment.run(
        "ernie", "new", "plugin", "--kind", "model", "--name", "m1", "--out", tmp_path / "m1", "--json"
    )
    assert "erniecore_m1/recipes/tiny.yaml" in json.loads(out)["files"]


@pytest.mark.slow
def test_installed_plugins_conform(environment):
    out = environment.run("ernie", "conform", "method", "sft", "--json")
    answer = json.loads(out[out.index("{") :])
    assert answer["ok"]
    assert len(answer["checks"]) > 35
