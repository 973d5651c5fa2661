"""The list of runs, their pages and the trash: against runs on disk."""

import json
import os
import threading

import pytest
from erniecore_webui.curve_store import CurveStore, samples
from erniecore_webui.curves import BUCKETS, Curves
from erniecore_webui.index import Index
from erniecore_webui.stream import events_since
from webui_runs import write_run


def test_the_list_finds_runs_at_any_depth_and_tells_their_state(browser):
    text = browser.get("/runs").text
    assert "group/second" in text
    assert '<span class="badge finished">' in text
    assert '<span class="badge interrupted">' in text
    assert "30 / 100" in text


@pytest.mark.parametrize(("query", "shown"), [("q=FIRST", ["first"]), ("q=no", []), ("state=interrupted", ["group/second"]),
                                              ("q=sft%20second", ["group/second"]), ("tag=good", ["first"])])  # fmt: skip
def test_the_list_is_searched(browser, query, shown):
    browser.post("/run/first/tags", data={"tags": "good, , good"})
    rows = browser.get(f"/runs?{query}", headers={"hx-request": "true"}).text
    assert [run for run in ("first", "group/second") if f'title="{run}"' in rows] == shown


def test_a_deleted_run_comes_back(browser, site):
    before = (site.root / "group/second/events.jsonl").read_bytes()
    deleted = browser.post("/runs/delete", data={"run": ["group~1second", "first"]})
    assert not (site.root / "first").exists()
    assert "group/second" not in browser.get("/runs").text
    names = deleted.url.params["undo"]
    browser.post("/runs/restore", data={"name": names})
    assert (site.root / "group/second/events.jsonl").read_bytes() == before
    assert (site.root / "first").is_dir()
    commands = [json.loads(line)["command"] for line in (site.state / "audit.jsonl").read_text().splitlines()]
    assert [command.split()[0] for command in commands] == ["mv"] * 4


@pytest.mark.parametrize("part", ["", "/charts", "/log", "/settings", "/data", "/checkpoints"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_part_of_a_run_shows_something(browser, part, language):
    answer = browser.get(f"/run/first{part}", headers={"accept-language": language})
    assert answer.status_code == 200
    assert f'<html lang="{language}"' in answer.text


def test_the_report_of_a_run_is_made_shown_and_sent(browser, site):
    run = site.root / "group/second"  # it has not ended
    assert browser.get("/run/group~1second/report.html").status_code == 404
    assert 'action="/run/group~1second/do/report"' in browser.get("/run/group~1second").text
    shown = browser.post("/run/group~1second/do/report")
    assert shown.url.path == "/run/group~1second/report.html"
    assert shown.text == (run / "report.html").read_text()
    assert shown.headers["content-security-policy"].startswith("sandbox; default-src 'none'; style-src")
    command = json.loads((site.state / "audit.jsonl").read_text().splitlines()[-1])["command"]
    assert command == "ernie runs report runs/group/second"
    text = browser.get("/run/group~1second").text
    assert 'href="/run/group~1second/report.html"' in text
    sent = browser.get("/run/group~1second/report.html?download")
    assert sent.headers["content-disposition"] == 'attachment; filename="second-report.html"'
    with (run / "events.jsonl").open("a") as file:  # it goes on
        file.write(json.dumps({"event": "step", "step": 31, "loss": 0.1}) + "\n")
    os.utime(run / "events.jsonl", (2e9, 2e9))
    assert 'action="/run/group~1second/do/report"' in browser.get("/run/group~1second").text


def test_ten_thousand_runs_are_listed_page_by_page(browser, site):
    event = json.dumps({"event": "run_start", "name": "many"}) + "\n"
    for number in range(10_000):
        directory = site.root / f"many-{number:05d}"
        directory.mkdir()
        (directory / "events.jsonl").write_text(event)
    site.index.forget()
    answer = browser.get("/runs?page=7")
    assert "7 / 201" in answer.text
    assert answer.text.count("<tr>") == 51
    assert len(site.index._facts) <= 100  # only what was looked at is read


def test_a_search_does_not_wait_for_ten_thousand_files(browser, site, monkeypatch):
    from erniecore_webui import index

    site.index._facts.clear()
    monkeypatch.setattr(index, "_SEARCH", -1.0)  # there is no time to read one
    text = browser.get("/runs?q=sft+first", headers={"hx-request": "true"}).text
    assert "2 runs are still being read" in text
    assert 'title="first"' not in text
    assert [found.run for found in site.index.select("first").found] == ["first"]  # that is its path
    monkeypatch.setattr(index, "_IDLE", 0.0)
    stopping = threading.Event()
    worker = threading.Thread(target=site.index.work, args=(stopping,))
    worker.start()
    while len(site.index._facts) < 2:
        pass
    stopping.set()
    worker.join()
    text = browser.get("/runs?q=sft+first").text
    assert "still being read" not in text
    assert 'title="first"' in text


def test_the_next_server_knows_what_the_last_one_read(site, monkeypatch):
    from erniecore_webui import index

    before = site.index.summaries(site.index.found())
    site.index.keep()
    monkeypatch.setattr(index, "facts", lambda *a: pytest.fail("it was read again"))
    assert Index(site.root, site.state).summaries(site.index.found()) == before
    monkeypatch.undo()
    with (site.root / "first/events.jsonl").open("a") as file:
        file.write('{"event": "step", "step": 99, "loss": 0.5}\n')
    (found,) = Index(site.root, site.state).select("first").found
    assert Index(site.root, site.state).summaries([found])[0].step == 99
    for wrong in ("[]", '{"first": 1}', '{"first": [1, 2, {"a": 1}]}', "{"):
        (site.state / "facts.json").write_text(wrong)
        assert len(Index(site.root, site.state).summaries(site.index.found())) == 2


def test_curves_keep_every_peak_in_bounded_memory(tmp_path):
    run = write_run(tmp_path / "run", steps=1)
    with (run / "events.jsonl").open("a") as file:
        for step in range(2, 50_001):
            loss = 99.0 if step == 33_333 else 1.0 if step != 44_444 else -5.0
            file.write(f'{{"event": "step", "step": {step}, "loss": {loss}, "tokens": 2, "seconds": 0.1}}\n')
    curves = Curves(run)
    ahead = samples(run / "events.jsonl", 100_000)
    assert len(ahead["loss"]["x"]) > 300
    assert ahead["loss"]["x"] == sorted(set(ahead["loss"]["x"]))
    assert ahead["loss"]["x"][-1] > 49_000
    while curves.read(0.2) < 1:
        pass
    loss = curves.points()["metrics"]["loss"]
    assert len(loss["x"]) <= 2 * BUCKETS
    assert (loss["x"][loss["y"].index(99.0)], loss["x"][loss["y"].index(-5.0)]) == (33_333, 44_444)
    assert loss["x"] == sorted(loss["x"])
    assert loss["x"][0] == 1
    assert loss["x"][-1] >= 50_000 - 64
    assert loss["tokens"][-1] == 10 + 2 * 49_999


def read_whole(store, run):
    """The answer when the events are read: a turn ends after a time, wherever it is by then."""
    while (found := store.read(run))["loaded"] < 1:
        pass
    return found


def test_thinned_curves_are_stored_and_taken_up_where_they_end(tmp_path, monkeypatch):
    from erniecore_webui import curve_store

    monkeypatch.setattr(curve_store, "_SMALL", 1)
    run = write_run(tmp_path / "run", steps=3000, status="")
    found = read_whole(CurveStore(tmp_path / "kept"), run)
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "step", "step": 3001, "loss": 7.5, "tokens": 10}\n')
    again = CurveStore(tmp_path / "kept")
    assert again.of(run).offset == found["offset"]
    now = read_whole(again, run)
    assert now["metrics"]["loss"]["y"][-1] == 7.5
    fresh = Curves(run)
    assert fresh.read(60) == 1
    assert {"loaded": 1.0, **fresh.points()} == now
    write_run(tmp_path / "other", steps=3500)
    (tmp_path / "other/events.jsonl").rename(run / "events.jsonl")  # another file, and longer
    assert CurveStore(tmp_path / "kept").of(run).offset == 0
    for file in (tmp_path / "kept").iterdir():
        file.write_text('{"format": 1, "offset": "x", "mark": 1}')
    assert CurveStore(tmp_path / "kept").of(run).offset == 0


def test_a_long_file_is_read_behind_the_page(tmp_path, monkeypatch):
    from erniecore_webui import curve_store

    monkeypatch.setattr(curve_store, "_TURN", -1.0)
    run = write_run(tmp_path / "run", steps=3000)
    store, stopping = CurveStore(tmp_path / "kept"), threading.Event()
    first = store.read(run)
    assert first["loaded"] == 0
    assert first["ahead"]["loss"]["x"][-1] > 2900
    monkeypatch.undo()
    worker = threading.Thread(target=store.work, args=(stopping,))
    worker.start()
    while store._asked:
        pass
    stopping.set()
    worker.join()
    assert store.of(run).points()["metrics"]["loss"]["x"][-1] == 3000


def test_lines_that_never_end_and_names_without_end_cost_nothing(tmp_path):
    run = write_run(tmp_path / "run", steps=3, status="")
    with (run / "events.jsonl").open("a") as file:
        file.write("x" * 600_000 + "\nno json\n[1]\n")
        for step in range(4, 400):
            file.write(json.dumps({"event": "step", "step": step, "loss": 1.0, f"a{step}": 1.0}) + "\n")
        file.write('{"event": "step", "step": 4')  # killed in mid-line
    curves = Curves(run)
    assert curves.read(60) == 1
    found = curves.points()["metrics"]
    assert found["loss"]["x"] == [*range(1, 400)]
    assert len(found) == 200


def test_curves_forget_what_a_resumed_run_repeats(tmp_path):
    run = write_run(tmp_path / "run", steps=10, status="")
    curves = Curves(run)
    curves.read()
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "run_start"}\n{"event": "step", "step": 6, "loss": 7.5, "tokens": 10}\n')
    curves.read()
    loss = curves.points()["metrics"]["loss"]
    assert loss["x"] == [1, 2, 3, 4, 5, 6]
    assert loss["y"][-1] == 7.5
    assert loss["tokens"][-1] == 60


def test_a_browser_that_comes_back_gets_what_it_missed_and_no_half_line(tmp_path):
    run = write_run(tmp_path / "run", steps=3)
    whole = (run / "events.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "st')
    assert events_since(run, first) == (whole[first:], len(whole))
    assert events_since(run, len(whole)) == (b"", len(whole))
    assert events_since(run, 10**9)[1] == -1  # another file


def test_compare_lists_only_the_settings_that_differ(browser, site):
    for run, rate in (("first", "0.1"), ("group/second", "0.2")):
        (site.root / run / "resolved.yaml").write_text(
            f"train:\n  learning_rate: {rate}  # a.yaml:2\n  max_steps: 5  # default\n"
        )
    text = browser.get("/compare?run=first&run=group~1second").text
    assert "train.learning_rate" in text
    assert "train.max_steps" not in text


def test_compare_shows_evaluations_with_their_interval(browser, site):
    with (site.root / "first/events.jsonl").open("a") as file:
        file.write('{"event": "eval", "step": 30, "accuracy": 0.5, "accuracy_stderr": 0.1, "seconds": 1}\n')
    text = browser.get("/compare?run=first&run=group~1second").text
    assert "0.5 ± 0.196" in text


def test_what_a_model_wrote_is_shown_by_step(browser, site):
    run = site.root / "first"
    with (run / "events.jsonl").open("a") as file:
        for name in ("eval-generate.jsonl", "../../.web/token"):
            file.write(json.dumps({"event": "evaluation", "by": name, "step": 4, "samples": name}) + "\n")
    rows = [
        {
            "step": step,
            "prompt": f"<b>{step}",
            "completion": f"wrote {step}",
            "reference": "r",
            "scores": {"exact": step / 8},
        }
        for step in (2, 4)
    ]
    (run / "eval-generate.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 5, "prom')
    last = browser.get("/run/first/evaluations").text
    assert "wrote 4" in last
    assert "wrote 2" not in last
    assert "&lt;b&gt;4" in last
    assert site.token not in last
    earlier = browser.get("/run/first/evaluations?step=2").text
    assert "wrote 2" in earlier
    assert '<td class="num">0.25</td>' in earlier
    assert "kept no samples" in browser.get("/run/group~1second/evaluations").text
    # results of its models are shown too
    (site.root / "evaluations/mine").mkdir(parents=True)
    result = {"model": "runs/first/model", "rows": 3, "loss": 7.25, "settings": {"data": ["rows.jsonl"]}}
    (site.root / "evaluations/mine/evaluation.json").write_text(json.dumps(result))
    assert "7.25" in browser.get("/run/first/evaluations").text
    assert "7.25" not in browser.get("/run/group~1second/evaluations").text
