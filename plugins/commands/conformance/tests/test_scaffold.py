"""`ernie new plugin`: exact files, names, code that linters accept. That the packages work is tested in packaging/."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from erniecore_conformance.scaffold.generate import LONGEST, check_name, render, write
from erniecore_conformance.scaffold.kinds import TEMPLATES

from erniecore.api import UsageError
from erniecore.api.testing import KINDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COMMON = {"README.md", "pyproject.toml", "PACKAGE/__init__.py", "PACKAGE/py.typed", "tests/test_conformance.py"}
FILES = {
    "device": {"PACKAGE/plugin.py", "PACKAGE/device.py", "tests/test_device.py"},
    "parallel": {"PACKAGE/plugin.py", "tests/test_parallel.py"},
    "model": {
        "PACKAGE/plugin.py",
        "PACKAGE/chat.jinja",
        "PACKAGE/model.py",
        "PACKAGE/state.py",
        "PACKAGE/recipes/__init__.py",
        "PACKAGE/recipes/tiny.yaml",
        "tests/test_model.py",
    },
    "adapter": {"PACKAGE/plugin.py", "PACKAGE/scaling.py", "tests/test_scaling.py"},
    "quantizer": {"PACKAGE/plugin.py", "PACKAGE/rounding.py", "tests/test_rounding.py"},
    "method": {"PACKAGE/plugin.py", "PACKAGE/encoder.py", "PACKAGE/objective.py", "tests/test_objective.py"},
    "optimizer": {"PACKAGE/plugin.py", "PACKAGE/lion.py", "tests/test_lion.py"},
    "schedule": {"PACKAGE/plugin.py", "tests/test_schedule.py"},
    "format": {"PACKAGE/plugin.py", "PACKAGE/rows.py", "tests/test_rows.py"},
    "reader": {"PACKAGE/plugin.py", "PACKAGE/rows.py", "tests/test_rows.py"},
    "corpus": {"PACKAGE/plugin.py", "PACKAGE/corpus.py", "tests/test_corpus.py"},
    "reward": {"PACKAGE/plugin.py", "PACKAGE/rewards.py", "tests/test_rewards.py"},
    "importer": {"PACKAGE/plugin.py", "PACKAGE/keys.py", "tests/test_keys.py"},
    "exporter": {"PACKAGE/plugin.py", "PACKAGE/archive.py", "tests/test_archive.py"},
    "launcher": {"PACKAGE/plugin.py", "PACKAGE/launcher.py", "tests/test_launcher.py"},
    "kernels": {"PACKAGE/plugin.py", "PACKAGE/hadamard.py", "tests/test_hadamard.py"},
    "server": {"PACKAGE/plugin.py", "PACKAGE/http.py", "tests/test_http.py"},
    "forecaster": {"PACKAGE/plugin.py", "PACKAGE/sizes.py", "tests/test_sizes.py"},
    "callback": {"PACKAGE/plugin.py", "tests/test_callback.py"},
    "command": {"PACKAGE/app.py", "tests/test_app.py"},
}
NAMES = ("a1", "a-name-of-as-many-as-thirty-ab")


def test_every_kind_can_be_drafted():
    assert set(TEMPLATES) == set(KINDS) == set(FILES)


@pytest.mark.parametrize("kind", KINDS)
def test_exact_files(kind):
    expected = {path.replace("PACKAGE", "erniecore_focal_loss") for path in COMMON | FILES[kind]}
    assert set(render(kind, "focal-loss")) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_entry_point_is_in_the_group_of_its_kind(kind):
    texts = render(kind, "focal-loss")
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    (target,) = (project["entry-points"][KINDS[kind].group][name] for name in ["focal-loss"])
    module, _, attribute = target.partition(":")
    tree = ast.parse(texts[module.replace(".", "/") + ".py"])
    names = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    names |= {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert attribute in names
    libraries = {"importer": ["erniecore-key-tables>=0.1,<0.2"], "model": ["erniecore-text>=0.1,<0.2"]}
    assert project["dependencies"] == ["erniecore>=0.1,<0.2", *libraries.get(kind, [])]


def test_nothing_of_the_template_language_is_left():
    for kind in KINDS:
        for path, text in render(kind, "focal-loss").items():
            if not path.endswith("chat.jinja"):
                assert "{{" not in text, path
                assert "__package__" not in text, path


@pytest.mark.parametrize(
    "name", ["Focal", "focal_loss", "-x", "x-", "x--y", "1x", "", "a" * (LONGEST + 1), "../x", "for"]
)
def test_bad_names_are_refused(name):
    with pytest.raises(UsageError):
        check_name("method", name)


def test_a_near_name_is_offered():
    with pytest.raises(UsageError) as caught:
        check_name("method", "FocalLoss v2")
    assert caught.value.fix == "use focal-loss-v2"


def test_unknown_kind_gets_the_nearest():
    with pytest.raises(UsageError) as caught:
        render("methd", "x")
    assert "method" in caught.value.fix


def test_taken_name_gets_a_free_one():
    with pytest.raises(UsageError) as caught:
        check_name("method", "sft", {"sft", "my-sft"})
    assert caught.value.fix == "use sft-2"


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match="nothing is overwritten"):
        write("method", "x1", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["note.txt"]


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError):
        write("method", "x1", tmp_path / "out")


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    root = tmp_path_factory.mktemp("drafts")
    for kind in KINDS:
        for name in NAMES:
            write(kind, name, root / kind / name)
    return root


def tool(name, *args, cwd):
    command = [str(Path(sys.executable).with_name(name)), *args]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def test_generated_code_is_clean_for_ruff(drafts):
    tool("ruff", "check", "--no-cache", ".", cwd=drafts)
    tool("ruff", "format", "--check", "--no-cache", ".", cwd=drafts)


@pytest.mark.slow
def test_generated_code_is_clean_for_mypy(tmp_path, pytestconfig):
    """With the settings of the packages, but in one run: mypy reads erniecore and pydantic anew in each. What it learned of
    them it keeps beside pytest's own cache, and checks by their hashes."""
    packages = [f"erniecore_the_{kind}" for kind in KINDS]
    for kind in KINDS:
        write(kind, f"the-{kind}", tmp_path / kind)
        (tmp_path / kind / f"erniecore_the_{kind}").rename(tmp_path / f"erniecore_the_{kind}")
    text = (tmp_path / "model" / "pyproject.toml").read_text()
    text = text[text.index("[tool.mypy]") : text.index("[tool.pytest")]
    for written, wanted in {
        '["erniecore_the_model"]': packages,
        '["erniecore_the_model.*"]': [f"{p}.*" for p in packages],
    }.items():
        assert written in text
        text = text.replace(written, str(wanted).replace("'", '"'))
    (tmp_path / "pyproject.toml").write_text(text)
    tool("mypy", "--config-file", "pyproject.toml", "--cache-dir", str(pytestconfig.cache.mkdir("mypy")), cwd=tmp_path)
