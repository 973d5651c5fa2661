"""``ernie config``, ``ernie plugins``, ``ernie version`` and the settings half of ``ernie run``; toys as plugins."""

import json

import pytest

from erniecore.cli.app import main

SELECT = ["--model", "toy", "--method", "prefer"]


def run(capsys, *args, code=0):
    assert main(args) == code, capsys.readouterr()
    return capsys.readouterr().out


def as_json(capsys, *args, code=0):
    return json.loads(run(capsys, *args, "--json", code=code))


def test_show_gives_each_value_and_source(toys, capsys):
    shown = as_json(capsys, "config", "show", *SELECT, "train.batch_size=3", "model.size=small")
    assert shown["train.batch_size"] == {"value": 3, "source": "command line"}
    assert shown["train.learning_rate"] == {"value": 0.002, "source": "recipe toy/small:2"}
    assert shown["method.beta"] == {"value": 0.1, "source": "default"}


def test_show_works_without_any_plugin_named(toys, capsys):
    lines = run(capsys, "config", "show").splitlines()
    assert lines[0].split() == ["key", "value", "source"]
    assert ["train.batch_size", "1", "default"] in [line.split() for line in lines]


def test_flags_are_settings(toys, capsys):
    args = [
        "--data",
        "a.jsonl",
        "b.jsonl",
        "--out",
        "o",
        "--format",
        "rows",
        "--adapter",
        "low",
        "--callback",
        "watch",
    ]
    shown = as_json(capsys, "config", "show", *SELECT, *args)
    assert [s["path"] for s in shown["data.train"]["value"]] == ["a.jsonl", "b.jsonl"]
    assert shown["run.out"]["value"] == "o"
    assert shown["data.format"]["value"] == "rows"
    assert shown["adapter.rank"]["value"] == 8
    assert shown["callbacks.watch.port"]["value"] == 80


def test_check_says_ok(toys, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("model: toy\nmethod: prefer\n")
    assert "ok (" in run(capsys, "config", "check", str(file))
    assert as_json(capsys, "config", "check", str(file))["plugins"]["method"] == "prefer"


def test_check_needs_what_a_run_needs(toys, capsys):
    assert main(["config", "check", "--model", "toy"]) == 2
    assert "no method is selected; add --method NAME" in capsys.readouterr().err


def test_schema_is_json(toys, capsys):
    schema = json.loads(run(capsys, "config", "schema", *SELECT))
    assert "train" in schema["properties"]


def test_explain(toys, capsys):
    (found,) = as_json(capsys, "config", "explain", "callbacks.watch.port")
    assert found["owner"] == "callback watch"
    assert "Sequences per micro-batch" in run(capsys, "config", "explain", "train.batch_size")


def test_diff_takes_files_and_run_directories(toys, tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("model: toy\nmethod: prefer\ntrain: {batch_size: 2}\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/resolved.yaml").write_text("model: toy\nmethod: prefer\n")
    found = as_json(capsys, "config", "diff", str(tmp_path / "a.yaml"), str(tmp_path / "out"))
    assert found == [{"key": "train.batch_size", "a": 2, "b": 1}]
    assert "no differences" in run(capsys, "config", "diff", str(tmp_path / "out"), str(tmp_path / "out"))


# ---- plugins


def test_plugins_lists_every_kind(toys, capsys):
    found = as_json(capsys, "plugins")
    toy = next(e for e in found if e["name"] == "toy")
    assert toy == {
        "kind": "model",
        "name": "toy",
        "distribution": "toys",
        "version": "1.0",
        "status": "ok",
        "target": "toys.plugin:model",
        "requires_core": ">=0.1,<0.2",
    }
    assert {"device", "parallel", "format"} <= {e["kind"] for e in found}


@pytest.mark.parametrize("args", [("plugins", "--kind", "method"), ("plugins", "list", "--kind", "method")])
def test_plugins_of_one_kind(toys, capsys, args):
    assert {e["kind"] for e in as_json(capsys, *args)} == {"method"}


def test_plugins_of_an_unknown_kind(capsys):
    assert main(["plugins", "--kind", "modle"]) == 2
    assert "did you mean model?" in capsys.readouterr().err


def test_plugin_info(toys, capsys):
    (found,) = as_json(capsys, "plugins", "info", "prefer")
    assert found["hooks"] == ["ernie_build_encoder", "ernie_build_objective", "ernie_check_settings"]
    assert [s["key"] for s in found["settings"]] == ["method.beta", "method.label_smoothing"]
    assert "method.beta: number > 0, default 0.1" in run(capsys, "plugins", "info", "prefer")


def test_plugin_info_of_nobody(toys, capsys):
    assert main(["plugins", "info", "prefr"]) == 2
    assert "did you mean prefer?" in capsys.readouterr().err


def test_plugins_check_imports_each_in_its_own_process(toys, capsys, monkeypatch):
    toys.add("bad", {"erniecore.methods": {"bad": "bad_m:plugin"}}, {"bad_m.py": "import os; os._exit(3)"})
    toys.add("later", {"erniecore.methods": {"later": "later_m:plugin"}}, {}, requires=["erniecore>=9"])
    source = "import numpy\nimport toys.plugin as t\nclass B(t.Prefer):\n    name = 'big'\nplugin = B()\n"
    toys.add("big", {"erniecore.methods": {"big": "big_m:plugin"}}, {"big_m.py": source})
    monkeypatch.setenv("PYTHONPATH", str(toys.path))
    found = {r["name"]: r for r in as_json(capsys, "plugins", "check", "prefer", "bad", "later", "big", code=9)}
    assert {n: r["status"] for n, r in found.items()} == {
        "prefer": "ok",
        "bad": "broken",
        "later": "incompatible",
        "big": "heavy",
    }
    assert "the process ended with 3" in found["bad"]["message"]
    assert "numpy" in found["big"]["message"]


# ---- run, version


def test_run_reports_settings_before_anything_else(toys, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["run", *SELECT, "--out", str(out), "train.max_steps=-1"]) == 2
    assert not out.exists()


def test_run_without_anything_says_what_is_missing(capsys):
    assert main(["run"]) == 2
    err = capsys.readouterr().err
    assert "no model is selected" in err
    assert "no method is selected" in err


def test_problems_of_the_engine_get_their_source(toys, capsys):
    assert main(["run", *SELECT, "--dry-run", "train.precision=float16"]) == 2
    assert "command line: train.precision=float16: " in capsys.readouterr().err


def test_bug_report_names_versions_but_no_paths(toys, tmp_path, capsys):
    report = run(capsys, "version", "--bug-report")
    assert "toy (toys 1.0)" in report
    assert "/" not in report.replace("erniecore/", "")
    assert as_json(capsys, "version") == {"erniecore": "0.1.0"}
