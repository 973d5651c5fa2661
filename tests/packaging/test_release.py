"""What `make release` puts beside the wheels, and that the same commit gives the same bytes."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import release
from flit_core.wheel import make_wheel_in

pytestmark = pytest.mark.install
ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000


@pytest.mark.parametrize("project", [".", "plugins/adapters/lora"])
def test_two_checkouts_of_a_commit_give_the_same_wheel(project, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    built = []
    for name, time in (("first", EPOCH + 1000), ("second", EPOCH + 90_000)):
        folder = tmp_path / name
        shutil.copytree(ROOT / project, folder, ignore=_other_folders(ROOT / project))
        for path in folder.rglob("*"):
            os.utime(path, (time, time))
        out = tmp_path / f"{name}-out"
        out.mkdir()
        built.append(make_wheel_in(folder / "pyproject.toml", out).file.read_bytes())
    assert built[0] == built[1]


def _other_folders(top):
    package = "erniecore" if top == ROOT else f"erniecore_{top.name}"

    def ignored(folder, names):
        if Path(folder) == top:
            return {name for name in names if (top / name).is_dir() and name != package}
        return {"__pycache__"} & set(names)

    return ignored


@pytest.fixture(scope="module")
def released(wheels, tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    for wheel in wheels.values():
        shutil.copy(wheel, folder)
    release.write(folder, EPOCH)
    return folder


def test_the_checksums_are_of_every_file(released):
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=released, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    listed = {line.split()[1] for line in (released / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in released.iterdir()} - {"SHA256SUMS"}


def test_the_bill_of_materials_has_every_wheel_and_what_it_needs(released, wheels):
    bill = json.loads((released / "sbom.cdx.json").read_text())
    sums = {line.split()[1]: line.split()[0] for line in (released / "SHA256SUMS").read_text().splitlines()}
    by_name = {component["name"]: component for component in bill["components"]}
    for name, wheel in wheels.items():
        assert by_name[name]["hashes"] == [{"alg": "SHA-256", "content": sums[wheel.name]}]
    refs = [component["bom-ref"] for component in bill["components"]]
    assert len(refs) == len(set(refs))
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert {ref for names in needs.values() for ref in names} <= set(refs)
    core = needs[by_name["erniecore"]["bom-ref"]]
    assert by_name["numpy"]["bom-ref"] in core
    assert by_name["erniecore-errors"]["bom-ref"] in core
    assert by_name["erniecore-lora"]["bom-ref"] not in core, "extras are a choice"
    assert by_name["paddlepaddle"]["version"] in (ROOT / "constraints.txt").read_text()
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"


def test_files_beside_the_wheels_are_the_same_again(released, tmp_path):
    for wheel in released.glob("*.whl"):
        shutil.copy(wheel, tmp_path)
    release.write(tmp_path, EPOCH)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {p.name: p.read_bytes() for p in released.iterdir()}


def test_notes_are_the_section_of_the_version():
    text = "# Changelog\n\n## 1.1.0 (unreleased)\n\n* new\n\n## 1.1\n\n* other\n\n## 1.0.0 (2026-01-01)\n\n* first\n"
    assert release.notes("1.1.0", text) == "* new\n"
    assert release.notes("1.0.0", text) == "* first\n"
    assert release.notes("1.1", text) == "* other\n"
    with pytest.raises(SystemExit, match=r"no notes for 2\.0\.0, there are: 1\.1\.0 \(unreleased\), 1\.1, 1\.0\.0"):
        release.notes("2.0.0", text)


def test_a_checkout_with_changes_is_refused(tmp_path):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## 1.0.0\n\n* first\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    release.check(tmp_path)
    (tmp_path / "left.py").write_text("")
    with pytest.raises(SystemExit, match=r"left\.py"):
        release.check(tmp_path)


def test_wheels_of_several_versions_are_refused(released, tmp_path):
    for wheel in released.glob("erniecore-0*.whl"):
        shutil.copy(wheel, tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / "other.py").write_text('"""Other."""\n__version__ = "9.0"\n')
    (project / "pyproject.toml").write_text(
        '[project]\nname = "other"\ndynamic = ["version", "description"]\n'
        '[build-system]\nrequires = ["flit_core"]\nbuild-backend = "flit_core.buildapi"\n'
    )
    make_wheel_in(project / "pyproject.toml", tmp_path)
    with pytest.raises(SystemExit, match=r"2 wheels of versions \['0\.1\.0', '9\.0'\]"):
        release.write(tmp_path, EPOCH)
