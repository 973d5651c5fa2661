"""Evaluations, the machine and the plugins: what the commands print, as the pages show it."""

import json
import os
import shutil

import pytest
from erniecore_webui.actions import ERNIE, Result
from erniecore_webui.measures import measures, span
from erniecore_webui.pages import compare
from webui_runs import write_model

from erniecore.api import installation

#: results of `ernie eval` for two models and for one, and of `ernie lm-eval` for a task
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


def test_numbers_and_intervals_of_results():
    compared = measures(COMPARED)
    assert [(m.group, m.name, m.value, m.low, m.high, m.p) for m in compared] == [
        ("", "loss", -0.0042, -0.0121, 0.0069, 0.43), ("copy", "loss", -0.1, -0.2, -0.05, 0.01)]  # fmt: skip
    assert span(compared) == (-0.2, 0.0069)
    assert compared[1].at(compared[1].low, span(compared)) == 0
    plain = measures(PLAIN)
    assert [(m.name, m.value, m.low) for m in plain] == [("loss", 7.1, None), ("perplexity", 1223.4, None),
                                                         ("exact_match", 0.4, 0.17)]  # fmt: skip
    (task,) = measures(TASKS)
    assert (task.group, task.name, task.value) == ("plus", "acc", 0.5)
    assert (round(task.low, 3), round(task.high, 3)) == (0.304, 0.696)
    # scores of a task, compared
    scores = measures(
        {"rows": 2, "scores": {"acc": {"a": 0.5, "b": 1.0, "difference": 0.5, "low": 0.0, "high": 1.0, "p": 0.5}}}
    )
    assert [(m.name, m.value) for m in scores] == [("acc", 0.5)]


KEPT = "--out runs/evaluations/{0}/evaluation.json"
SAMPLES = " --samples runs/evaluations/{0}/samples.jsonl"
FORMS = [
    ({"model": ["one", ""], "data": "rows.jsonl", "limit": "5"}, "one-rows",
     "eval --model one --data rows.jsonl --method sft --limit 5 " + KEPT + SAMPLES),
    ({"model": ["one", "two"], "data": "rows.jsonl", "generate": "1"}, "one-two-rows",
     "eval --compare one two --data rows.jsonl --method sft --generate " + KEPT),
    ({"model": ["one"], "tasks": "plus, minus", "include": "tasks"}, "one-plus-minus",
     "lm-eval --model one --tasks plus,minus --include-path tasks " + KEPT + SAMPLES),
]  # fmt: skip


def finish(site, name, content, *, samples=True):
    """What the command of an evaluation leaves."""
    directory = site.root / "evaluations" / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "evaluation.json").write_text(json.dumps(content))
    if samples:
        (directory / "samples.jsonl").write_text("{}\n")


@pytest.mark.parametrize(("given", "name", "expected"), FORMS)
def test_an_evaluation_is_a_command_whose_result_outlives_it(browser, ready, given, name, expected):
    assert browser.post("/evaluate/start", data=given).status_code == 200
    (task,) = ready.tasks.all()
    assert list(task.argv) == [*ERNIE, *expected.format(name).split()]
    assert f'href="/queue?task={task.name}"' in browser.get("/evaluate").text  # it goes on
    finish(ready, name, COMPARED)
    shutil.rmtree(task.directory)
    shown = browser.get("/evaluate", headers={"hx-request": "true"}).text
    assert "-0.0121 … 0.0069" in shown
    assert shown.count("<svg") == 2
    assert "hx-get" not in shown  # nothing goes on
    assert not ready.data.found().keys() - {"rows.jsonl"}  # results are no data to train on
    browser.post("/evaluate/start", data=given)
    assert f"evaluations/{name}-2/" in ready.tasks.all()[0].command  # none is written over


def test_two_results_are_compared_row_by_row(browser, ready):
    finish(ready, "b", PLAIN)
    finish(ready, "a", {**PLAIN, "model_sha256": "0123", "settings": {"data": ["rows.jsonl"], "limit": 7}})
    finish(ready, "compared", COMPARED, samples=False)
    shown = browser.get("/evaluate").text
    assert "0123" in shown
    assert "rows.jsonl" in shown
    os.utime(ready.root / "evaluations/b/evaluation.json", (1, 1))
    browser.post("/evaluate/compare", data={"result": ["a", "b"]})
    (task,) = ready.tasks.all()
    files = "runs/evaluations/b/samples.jsonl runs/evaluations/a/samples.jsonl"  # the older one first
    expected = f"eval --compare {files} --out runs/evaluations/b-a/evaluation.json"
    assert list(task.argv) == [*ERNIE, *expected.split()]
    for wrong in (["a"], ["a", "compared"], ["a", "b", "compared"], ["a", "../x"]):
        assert browser.post("/evaluate/compare", data={"result": wrong}).status_code == 400
    assert len(ready.tasks.all()) == 1


def test_runs_are_compared_by_kept_results_of_their_models(browser, site):
    for name, content in {
        "one": {**PLAIN, "model": "runs/first/model", "settings": {"data": ["held.jsonl"]}},
        "two": {
            **PLAIN,
            "model": "runs/group/second/exported/step-1",
            "loss": 6.25,
            "settings": {"data": ["held.jsonl"]},
        },
        "base": {**PLAIN, "model": "elsewhere"},
        "both": {**COMPARED, "a": "runs/first/model", "b": "runs/group/second/exported/step-1"},
        "rows": {**COMPARED, "a": "runs/evaluations/one/samples.jsonl", "b": "runs/evaluations/two/samples.jsonl"},
        "else": {**COMPARED, "a": "runs/first/model", "b": "elsewhere"},
    }.items():
        (site.root / "evaluations" / name).mkdir(parents=True)
        (site.root / "evaluations" / name / "evaluation.json").write_text(json.dumps(content))
    paths = [site.root / "first", site.root / "group/second"]
    lines = {line.name: line for line in compare.kept(site, paths)}
    assert {line.data for line in lines.values()} == {"held.jsonl"}
    assert [cell[0].value for cell in lines["loss"].cells] == [7.1, 6.25]
    assert [(cell[0].low, cell[0].high) for cell in lines["exact_match"].cells] == [(0.17, 0.69)] * 2
    assert {result.name for result in compare.pairs(site, paths)} == {"both", "rows"}
    text = browser.get("/compare?run=first&run=group~1second").text
    assert "[0.17, 0.69]" in text
    assert "-0.0121 … 0.0069" in text
    (site.root / "first/model").mkdir()
    (site.root / "first/model/config.json").write_text("{}")
    assert "/evaluate?model=runs%2Ffirst%2Fmodel" in browser.get("/compare?run=first").text
    assert compare.kept(site, paths[:1])[0].cells[0][1].name == "one"


def test_a_deleted_result_comes_back(browser, ready):
    finish(ready, "mine", PLAIN)
    answer = browser.post("/evaluate/delete", data={"result": ["mine"]})
    assert not (ready.root / "evaluations/mine").exists()
    name = dict(answer.url.params)["undo"]
    assert f'value="{name}"' in answer.text
    browser.post("/evaluate/restore", data={"name": name})
    assert (ready.root / "evaluations/mine/samples.jsonl").is_file()
    for wrong in ("", ".", "..", "../first", "evaluations"):
        assert browser.post("/evaluate/delete", data={"result": [wrong]}).status_code == 400
    assert (ready.root / "first").is_dir()


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
    (task.directory / "exit.json").write_text('{"code": 9, "time": 2}')
    shown = browser.get("/plugins").text.split('id="method-sft"')[1].split("</tr>")[0]
    assert f'href="/queue?task={task.name}"><span class="badge failed">failed' in shown


def test_where_a_plugin_came_from_is_told(monkeypatch):
    from erniecore_webui.pages import plugins

    class Told:
        text = ""

        def read_text(self, name):
            return self.text

    entry = installation.find("method", "sft")
    monkeypatch.setattr(plugins, "distribution", lambda name: Told())
    for text, expected in [
        ('{"url": "file:///a%20b", "dir_info": {"editable": true}}', ("editable", "/a b")),
        ('{"url": "https://x/y.whl", "archive_info": {}}', ("local", "https://x/y.whl")),
        ("", ("index", "")),
        ("{", ("index", "")),
    ]:
        Told.text = text
        assert plugins.origin(entry) == expected


BENCHES = [
    ("matmul", {}, "bench matmul --device cpu"),
    ("comm", {"device": "cpu"}, "bench comm --device cpu"),
    ("open", {}, "doctor --open --out runs --device cpu"),
    ("serve", {"model": "one"}, "bench serve --model one --device cpu"),
    ("train", {"run": "group/second"}, "bench train runs/group/second/resolved.yaml --device cpu"),
]


@pytest.mark.parametrize(("name", "given", "expected"), BENCHES)
def test_a_measurement_is_a_task_on_its_device(browser, ready, name, given, expected):
    assert browser.post(f"/machine/bench/{name}", data=given).status_code == 200
    (task,) = ready.tasks.all()
    assert (list(task.argv), task.device) == ([*ERNIE, *expected.split()], "cpu")
    wrong = [
        ("rm", {}),
        (name, {**given, "device": "--json"}),
        ("serve", {"model": "/etc"}),
        ("train", {"run": "../x"}),
    ]
    for path, data in wrong:
        assert browser.post(f"/machine/bench/{path}", data=data).status_code in (400, 404)
    assert len(ready.tasks.all()) == 1


def test_json_is_found_amid_warnings():
    def found(output):
        return Result(0, output).json()

    assert found('[warn] {"a": 1}\n{"b": [1,\n {"c": 2}]}\nbye\n') == {"b": [1, {"c": 2}]}
    assert found("note: [1]\n[\n 1]\n") == [1]
    assert found('{"event": "error", "error": {"code": "ERN-D001"}}\n') is None
    assert found("[" * 100_000) is None
    assert found("") is found("no\n") is found('{"a": 1} and more\n') is None
