"""What is in the wheels: the package as it is in the repository, whole, and nothing else."""

import subprocess
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import erniecore

pytestmark = pytest.mark.install
ROOT = Path(__file__).parents[2]
FOLDERS = {"erniecore": ROOT} | {
    "erniecore-" + p.parent.name.replace("_", "-"): p.parent for p in sorted(ROOT.glob("plugins/*/*/pyproject.toml"))
}
MUST = {
    "erniecore": {
        "erniecore/py.typed",
    },
    "erniecore-catalog": {f"erniecore_catalog/{name}.toml" for name in ("known", "plugin_names", "synonyms")},
    "erniecore-conformance": {
        "erniecore_conformance/scaffold/templates/common/pyproject.toml.jinja",
        "erniecore_conformance/scaffold/templates/model/__package__/recipes/tiny.yaml.jinja",
    },
    "erniecore-ernie45": {
        "erniecore_ernie45/py.typed",
        "erniecore_ernie45/recipes/tiny.yaml",
        "erniecore_ernie45/templates/ernie45.jinja",
    },
    "erniecore-ernie45-moe": {"erniecore_ernie45_moe/py.typed", "erniecore_ernie45_moe/recipes/tiny.yaml"},
}


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.mark.parametrize("name", FOLDERS)
def test_wheel_is_the_package_and_nothing_else(wheels, name):
    package = name.replace("-", "_")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", package]
    done = subprocess.run(listing, cwd=FOLDERS[name], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    tracked = {line for line in done.stdout.splitlines() if (FOLDERS[name] / line).is_file()}
    found = contents(wheels[name])
    assert {n for n in found if ".dist-info/" not in n} == tracked
    assert not [n for n in found if Path(n).name.startswith("test_") and "/templates/" not in n]


@pytest.mark.parametrize("name", MUST)
def test_data_files_are_in_the_wheel(wheels, name):
    assert contents(wheels[name]) >= MUST[name]


@pytest.mark.parametrize("name", FOLDERS)
def test_metadata(wheels, name):
    facts = metadata(wheels[name])
    assert (facts["Name"], facts["Version"]) == (name, erniecore.__version__)
    assert facts["Requires-Python"] == ">=3.10"
    assert facts["Summary"]
    assert name in facts.get_payload(), "the README is the long description"


@pytest.mark.parametrize("name", [name for name, folder in FOLDERS.items() if folder.parent.name != "libraries"])
def test_every_entry_point_leads_to_a_module_of_the_wheel(wheels, name):
    names = contents(wheels[name])
    with zipfile.ZipFile(wheels[name]) as archive:
        (path,) = [n for n in names if n.endswith("entry_points.txt")]
        lines = archive.read(path).decode().splitlines()
    targets = [line.partition("=")[2].strip().partition(":")[0] for line in lines if "=" in line]
    assert targets
    for target in targets:
        module = target.replace(".", "/")
        assert {f"{module}.py", f"{module}/__init__.py"} & names


def test_wheels_run_on_any_platform(wheels):
    assert all(path.name.endswith("-py3-none-any.whl") for path in wheels.values())
