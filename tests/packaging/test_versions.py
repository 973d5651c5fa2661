"""One version for the repository, and every plugin is known wherever plugins are listed."""

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import erniecore
from erniecore.kinds import KINDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CORE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLUGINS = {p.parent: tomllib.loads(p.read_text())["project"] for p in sorted(ROOT.glob("plugins/*/pyproject.toml"))}


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda p: p.name)
def test_plugin_has_the_version_of_the_core(folder):
    assert PLUGINS[folder]["version"] == CORE["version"] == erniecore.__version__


#: groups of entry points that others read
FOREIGN = {"pytest11", "fastdeploy.model_register_plugins"}


def test_the_kernels_have_the_version_of_the_core():
    project = tomllib.loads((ROOT / "third_party_kernels" / "pyproject.toml").read_text())["project"]
    assert project["version"] == CORE["version"]
    assert project["requires-python"] == CORE["requires-python"]
    assert CORE["optional-dependencies"]["kernels"] == [f"{project['name']}=={CORE['version']}"]


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda p: p.name)
def test_plugin_accepts_this_minor_version_of_the_core_only(folder):
    version = Version(CORE["version"])
    ours = [r for r in map(Requirement, PLUGINS[folder]["dependencies"]) if r.name.startswith("erniecore")]
    assert "erniecore" in [r.name for r in ours]
    for requirement in ours:
        assert requirement.specifier.contains(version)
        assert not requirement.specifier.contains(f"{version.major}.{version.minor + 1}")
        assert not requirement.specifier.contains(f"{version.major}.{version.minor - 1}") or version.minor == 0


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda p: p.name)
def test_names_follow_the_folder(folder):
    assert PLUGINS[folder]["name"] == "erniecore-" + folder.name.replace("_", "-")
    assert (folder / f"erniecore_{folder.name}" / "__init__.py").is_file()


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda p: p.name)
def test_plugin_supports_the_pythons_of_the_core(folder):
    assert PLUGINS[folder]["requires-python"] == CORE["requires-python"]


def test_extras_pin_the_same_version():
    ours = [
        Requirement(r) for extra in CORE["optional-dependencies"].values() for r in extra if r.startswith("erniecore")
    ]
    assert {r.name for r in ours} == {project["name"] for project in PLUGINS.values()}
    assert {str(r.specifier) for r in ours} == {f"=={CORE['version']}"}


def test_the_core_requires_no_paddle():
    assert not [r for r in CORE["dependencies"] if "paddle" in r.lower()]


def test_groups_of_entry_points_are_those_of_the_kinds():
    groups = {kind.group for kind in KINDS.values()}
    for project in (CORE, *PLUGINS.values()):
        assert set(project.get("entry-points", {})) <= groups | FOREIGN


def test_known_plugins_are_those_of_the_repository():
    known = tomllib.loads((ROOT / "erniecore" / "known.toml").read_text())
    kinds = {kind.group: kind.name for kind in KINDS.values()}
    shipped = {
        (kinds[group], name, project["name"])
        for project in PLUGINS.values()
        for group, points in project["entry-points"].items()
        if group not in FOREIGN
        for name in points
    }
    listed = {(kind, name, home) for kind, names in known.items() for name, home in names.items()}
    assert shipped <= listed
