"""One version for the repository, and every plugin is known wherever plugins are listed."""

import sys
from pathlib import Path

import tested_versions
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import erniecore
from erniecore.kinds import KINDS
from erniecore.plugin_entry import OUR_RANGE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CORE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLUGINS = {p.parent: tomllib.loads(p.read_text())["project"] for p in sorted(ROOT.glob("plugins/*/*/pyproject.toml"))}


def test_plugins_have_the_version_and_the_pythons_of_the_core():
    assert CORE["version"] == erniecore.__version__
    for key in ("version", "requires-python"):
        others = {folder.name: project[key] for folder, project in PLUGINS.items() if project[key] != CORE[key]}
        assert not others, f"{key} is not {CORE[key]}: {others}"


#: libraries of ours that come with the core
NEEDED_BY_CORE = {Requirement(r).name for r in CORE["dependencies"]}
#: distributions that bring much and that few need: not part of `default`
ON_DEMAND = {"erniecore-lm-eval"}
#: groups of entry points that others read
FOREIGN = {"pytest11", "fastdeploy.model_register_plugins"}


def test_the_kernels_have_the_version_of_the_core():
    project = tomllib.loads((ROOT / "third_party_kernels" / "pyproject.toml").read_text())["project"]
    assert project["version"] == CORE["version"]
    assert project["requires-python"] == CORE["requires-python"]
    assert CORE["optional-dependencies"]["kernels"] == [f"{project['name']}=={CORE['version']}"]


def test_plugins_accept_this_minor_version_of_the_core_only():
    version = Version(CORE["version"])
    for folder, project in PLUGINS.items():
        ours = [r for r in map(Requirement, project["dependencies"]) if r.name.startswith("erniecore")]
        # what the core depends on cannot depend on the core
        assert ("erniecore" in [r.name for r in ours]) != (project["name"] in NEEDED_BY_CORE), folder.name
        for requirement in ours:
            text = f"{folder.name}: {requirement}"
            assert requirement.specifier.contains(version), text
            assert not requirement.specifier.contains(f"{version.major}.{version.minor + 1}"), text
            assert not requirement.specifier.contains(f"{version.major}.{version.minor - 1}") or not version.minor, text


def test_the_range_that_is_accepted_without_a_comparison_is_theirs():
    assert Version(CORE["version"]) in SpecifierSet(OUR_RANGE)
    texts = {text for project in PLUGINS.values() for text in project["dependencies"] if text.startswith("erniecore>")}
    assert texts == {f"erniecore{OUR_RANGE}"}


def test_what_is_needed_has_been_tested_in_a_version_that_is_allowed():
    """constraints.txt; the extras of tests and development are not part of it."""
    tested = tested_versions.pinned("3.11")
    extras = [*CORE["optional-dependencies"]["cpu"], *CORE["optional-dependencies"]["data"]]
    texts = {r for project in (CORE, *PLUGINS.values()) for r in project["dependencies"]} | {*extras}
    needed = [r for r in map(Requirement, texts) if not r.name.startswith("ernie")]
    assert len({r.name for r in needed}) > 10
    for requirement in needed:
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.11"}):
            version = tested.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement.name}: make constraints"
            assert requirement.specifier.contains(version), f"{requirement}, tested with {version}"


def test_names_follow_the_folder():
    for folder, project in PLUGINS.items():
        assert project["name"] == "erniecore-" + folder.name.replace("_", "-")
        assert (folder / f"erniecore_{folder.name}" / "__init__.py").is_file(), folder.name


def test_extras_pin_the_same_version():
    ours = [
        Requirement(r) for extra in CORE["optional-dependencies"].values() for r in extra if r.startswith("erniecore")
    ]
    assert {r.name for r in ours} == {project["name"] for project in PLUGINS.values()} - NEEDED_BY_CORE
    assert {str(r.specifier) for r in ours} == {f"=={CORE['version']}"}


def test_default_is_everything_that_make_install_brings():
    """But for what brings much that few need. Also each distribution has an extra of its own or one with others, so that
    errors and pages can name it."""
    extras = CORE["optional-dependencies"]
    kernels = tomllib.loads((ROOT / "third_party_kernels" / "pyproject.toml").read_text())["project"]["name"]
    everything = {project["name"] for project in PLUGINS.values()} - NEEDED_BY_CORE | {kernels}
    assert sorted(extras["default"]) == sorted(f"{name}=={CORE['version']}" for name in everything - ON_DEMAND)
    named = {Requirement(r).name for extra, requirements in extras.items() if extra != "default" for r in requirements}
    assert everything <= named


def test_the_core_requires_no_paddle():
    assert not [r for r in CORE["dependencies"] if "paddle" in r.lower()]


def test_groups_of_entry_points_are_those_of_the_kinds():
    groups = {kind.group for kind in KINDS.values()}
    for project in (CORE, *PLUGINS.values()):
        assert set(project.get("entry-points", {})) <= groups | FOREIGN


def test_known_plugins_are_those_of_the_repository():
    known = tomllib.loads((ROOT / "plugins/libraries/catalog/erniecore_catalog/known.toml").read_text())
    kinds = {kind.group: kind.name for kind in KINDS.values()}
    shipped = {
        (kinds[group], name, project["name"])
        for project in PLUGINS.values()
        for group, points in project.get("entry-points", {}).items()
        if group not in FOREIGN
        for name in points
    }
    listed = {(kind, name, home) for kind, names in known.items() for name, home in names.items()}
    assert shipped <= listed
