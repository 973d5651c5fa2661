"""Generated pages are up to date, and every hook is documented with its exact arguments."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from erniecore import hookspecs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def test_pages_are_fresh():
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def generate(monkeypatch):
    """``docs/generate.py`` as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("generate")


def test_check_finds_a_stale_page_and_write_renews_it(generate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "PAGES", {"a.md": lambda: "new\n"})
    (tmp_path / "a.md").write_text("old\n")

    def run(word):
        monkeypatch.setattr(sys, "argv", ["generate.py", word])
        return generate.main()

    assert run("--check") == 1
    assert "stale: a.md" in capsys.readouterr().err
    assert run("--write") == 0
    assert run("--check") == 0


@pytest.mark.usefixtures("toys")
def test_the_settings_page_holds_core_and_own_plugins_only(generate):
    page = generate.settings_page.markdown()
    assert "| `train.batch_size` | integer ≥ 1 | `1` |" in page
    assert "### model `ernie45`" in page
    assert "toy" not in page


def test_every_hook_says_when_and_how():
    """A hook's docstring is its contract; build hooks that a plugin provides also show an example."""
    for name, function in hookspecs.all_hooks().items():
        text = inspect.getdoc(function) or ""
        assert re.search(r"[.!]$", text.strip().split("\n\n")[0].strip()), f"{name}: no sentence"
        arguments = [a for a in inspect.signature(function).parameters if a != "self"]
        assert len(arguments) <= 4, f"{name} takes {len(arguments)} arguments"


def test_the_engine_in_the_design_page_is_the_one_of_the_import_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (c for c in settings["contracts"] if c["name"] == "The engine in layers")
    layers = re.findall(r"erniecore\.engine\.(\w+)", " ".join(contract["layers"]))
    page = (ROOT / "docs/explanation/design.md").read_text(encoding="utf-8").partition("## The engine")[2]
    table = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(table))) == sorted(layers)
