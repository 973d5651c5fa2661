"""``ernie new plugin``: what it writes, says and refuses."""

import json

import pytest
from erniecore_conformance.scaffold.generate import render

from erniecore import registry
from erniecore.api import Exit
from erniecore.cli.app import main


@pytest.fixture
def ernie(capsys):
    def run(*args):
        code = main(["new", "plugin", *args])
        return code, *capsys.readouterr()

    return run


def files(root):
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_package_is_written_where_out_says(ernie, tmp_path):
    code, out, _ = ernie("--kind", "method", "--name", "focal-loss", "--out", str(tmp_path / "x"), "--json")
    assert code == Exit.OK
    assert json.loads(out) == {
        "kind": "method",
        "name": "focal-loss",
        "out": str(tmp_path / "x"),
        "files": sorted(render("method", "focal-loss")),
    }
    assert files(tmp_path / "x") == sorted(render("method", "focal-loss"))


def test_default_directory_is_named_like_the_distribution(ernie, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = ernie("--kind", "callback", "--name", "metrics-csv")
    assert code == Exit.OK
    assert (tmp_path / "erniecore-metrics-csv" / "pyproject.toml").is_file()
    assert out.splitlines()[-1].startswith("next: pip install -e 'erniecore-metrics-csv[test]'")


def test_in_the_repository_it_goes_where_plugins_of_its_kind_are(ernie, tmp_path, monkeypatch):
    for folder in ("erniecore", "plugins", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "erniecore" / "kinds.py").touch()
    monkeypatch.chdir(tmp_path / "docs")
    code, out, _ = ernie("--kind", "callback", "--name", "metrics-csv")
    assert code == Exit.OK
    home = tmp_path / "plugins" / "callbacks" / "metrics_csv"
    assert (home / "erniecore_metrics_csv" / "plugin.py").is_file()
    assert out.splitlines()[-1].startswith("next: pip install -e '../plugins/callbacks/metrics_csv[test]'")


def test_a_second_time_nothing_is_overwritten(ernie, tmp_path):
    args = ("--kind", "format", "--name", "qa", "--out", str(tmp_path / "x"))
    assert ernie(*args)[0] == Exit.OK
    (tmp_path / "x" / "README.md").write_text("mine")
    code, _, err = ernie(*args)
    assert code == Exit.USAGE
    assert "nothing is overwritten" in err
    assert (tmp_path / "x" / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "name", "part"),
    [
        ("method", "sft", "use my-sft"),
        ("command", "run", "use my-run"),
        ("method", "FocalLoss", "use focal-loss"),
        ("metod", "x", "did you mean method?"),
    ],
)
def test_bad_names_are_refused_with_a_better_one(ernie, tmp_path, kind, name, part):
    code, _, err = ernie("--kind", kind, "--name", name, "--out", str(tmp_path / "x"))
    assert code == Exit.USAGE
    assert part in err
    assert not (tmp_path / "x").exists()


def test_command_is_listed():
    assert {"new", "conform"} <= {entry.name for entry in registry.entries("command")}
