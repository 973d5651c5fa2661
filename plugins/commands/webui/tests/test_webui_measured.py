"""Evaluations, the machine and the plugins: what the commands print, as the pages show it."""

import json

import pytest
from erniecore_webui.actions import ERNIE, Result
from erniecore_webui.measures import measures, span
from webui_runs import write_model

#: what `ernie eval --json` printed for two models, and `ernie lm-eval --json` for a task
COMPARED = {"a": "model", "b": "q8", "seed": 0, "rows": 10, "loss": {"a": 7.109, "b": 7.105, "difference": -0.0042,
            "low": -0.0121, "high": 0.0069, "p": 0.43}, "groups": {"copy": {"rows": 5, "loss": {"a": 6.6, "b": 6.5,
            "difference": -0.1, "low": -0.2, "high": -0.05, "p": 0.01}}}}  # fmt: skip
PLAIN = {"model": "model", "rows": 10, "loss": 7.1, "perplexity": 1223.4, "exact_match": {"n": 10, "correct": 4, "score": 0.4,
         "low": 0.17, "high": 0.69}, "groups": {}}  # fmt: skip
TASKS = {"model": "model", "results": {"plus": {"name": "plus", "alias": "plus", "sample_len": 12, "acc,none": 0.5,
         "acc_stderr,none": 0.1}}}  # fmt: skip


@pytest.fixture
def ready(site, monkeypatch):
    """Two models and a file of rows; nothing is started."""
    write_model(site.home / "one")
    write_model(site.home / "two")
    (site.home / "rows.jsonl").write_text("{}\n")
    (site.home / "tasks").mkdir()
    monkeypatch.setattr(site.tasks, "_start", lambda task: None)
    site.models.forget()
    return site


def test_numbers_and_intervals_are_read_from_what_was_printed():
    compared = measures("note: 20 tensors\n" + json.dumps(COMPARED, indent=2) + "\nbye\n")
    assert [(m.group, m.name, m.value, m.low, m.high, m.p) for m in compared] == [
        ("", "loss", -0.0042, -0.0121, 0.0069, 0.43), ("copy", "loss", -0.1, -0.2, -0.05, 0.01)]  # fmt: skip
    assert span(compared) == (-0.2, 0.0069)
    assert compared[1].at(compared[1].low, span(compared)) == 0
    plain = measures(json.dumps(PLAIN))
    assert [(m.name, m.value, m.low) for m in plain] == [("loss", 7.1, None), ("perplexity", 1223.4, None),
                                                         ("exact_match", 0.4, 0.17)]  # fmt: skip
    (task,) = measures(json.dumps(TASKS))
    assert (task.group, task.name, task.value) == ("plus", "acc", 0.5)
    assert (round(task.low, 3), round(task.high, 3)) == (0.304, 0.696)
    assert measures("error ERN-D001 no such file\n") == []


FORMS = [
    ({"model": ["one", ""], "data": "rows.jsonl", "limit": "5"},
     "eval --model one --data rows.jsonl --method sft --limit 5 --json"),
    ({"model": ["one", "two"], "data": "rows.jsonl", "generate": "1"},
     "eval --compare one two --data rows.jsonl --method sft --generate --json"),
    ({"model": ["one"], "tasks": "plus, minus", "include": "tasks"},
     "lm-eval --model one --tasks plus,minus --include-path tasks --json"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), FORMS)
def test_an_evaluation_is_a_command_whose_result_stays(browser, ready, given, expected):
    assert browser.post("/evaluate/start", data=given).status_code == 200
    (task,) = ready.tasks.all()
    assert list(task.argv) == [*ERNIE, *expected.split()]
    (task.directory / "output.log").write_text(json.dumps(COMPARED))
    (task.directory / "exit.json").write_text('{"code": 0, "time": 2}')
    shown = browser.get("/evaluate", headers={"hx-request": "true"}).text
    assert "-0.0121 … 0.0069" in shown
    assert shown.count("<svg") == 2


@pytest.mark.parametrize("change", [{"model": ""}, {"model": "/etc"}, {"data": "../x.jsonl"}, {"data": ""}, {"limit": "-1"},
                                    {"method": "no"}, {"tasks": "--x"}, {"tasks": "a b"},
                                    {"tasks": "a", "include": "/"}])  # fmt: skip
def test_what_cannot_be_evaluated_is_refused(browser, ready, change):
    given = {"model": "one", "data": "rows.jsonl", **change}
    assert browser.post("/evaluate/start", data=given).status_code == 400
    assert not ready.tasks.all()


def test_the_doctor_and_measurements_are_shown(browser, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert "Nothing was measured yet" in browser.get("/machine").text
    (cache / "erniecore").mkdir(parents=True)
    rate = {
        "device": "cpu",
        "machine": "m",
        "dtype": "float32",
        "flops": 1.5e11,
        "shape": [1, 2, 3],
        "day": "2026-01-02",
    }
    (cache / "erniecore/rates.json").write_text(json.dumps([rate, "x"]))
    text = browser.get("/machine").text
    assert "flops 1.5e+11" in text
    assert "2026-01-02" in text
    found = browser.get("/machine/doctor").text
    assert "usable cores" in found
    assert '<span class="badge finished">ok</span>' in found


def test_a_doctor_that_fails_is_shown_as_it_failed(browser, site, monkeypatch):
    from erniecore_webui.actions import Result

    monkeypatch.setattr(site.actions, "ernie", lambda *_: Result(9, "error ERN-P001 broken"))
    assert "ERN-P001" in browser.get("/machine/doctor").text


def test_plugins_are_listed_those_that_nothing_may_use_first(browser, ready, monkeypatch):
    from erniecore.api import installation

    entries = installation.all_entries()
    broken = next(entry for entry in entries if entry.distribution == "erniecore-lora")
    kept = [entry for entry in entries if entry.distribution != "erniecore-ernie45"]
    changed = type(broken)(
        **{name: getattr(broken, name) for name in type(broken).__slots__} | {"requires_core": ">=9"}
    )
    monkeypatch.setattr(installation, "all_entries", lambda: [*kept, changed])
    monkeypatch.setattr(installation, "installed", lambda names: {})
    text = browser.get("/plugins").text
    assert text.index("needs erniecore &gt;=9") < text.index(">usable<")
    assert "erniecore-ernie45</b>" in text
    assert "install" in text[text.index("erniecore-ernie45</b>") :]


def test_conformance_is_a_task_for_a_plugin_that_is_here(browser, ready):
    assert browser.post("/plugins/conform", data={"kind": "method", "name": "sft"}).status_code == 200
    assert browser.post("/plugins/conform", data={"kind": "method", "name": "--help"}).status_code == 400
    (task,) = ready.tasks.all()
    assert list(task.argv) == [*ERNIE, "conform", "method", "sft"]


def test_json_is_found_amid_warnings():
    def found(output):
        return Result(0, output).json()

    assert found('[warn] {"a": 1}\n{"b": [1,\n {"c": 2}]}\nbye\n') == {"b": [1, {"c": 2}]}
    assert found("note: [1]\n[\n 1]\n") == [1]
    assert found('{"event": "error", "error": {"code": "ERN-D001"}}\n') is None
    assert found("[" * 100_000) is None
    assert found("") is found("no\n") is found('{"a": 1} and more\n') is None
