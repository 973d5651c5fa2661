"""The report of finished, running, crashed and resumed runs."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pytest
from erniecore_report import summary_text, write_report
from erniecore_report.summary import loss_table
from erniecore_runs.latest import duration
from erniecore_runs.record import number, read_run, row_statistics

from erniecore.api import UsageError
from erniecore.api.runs import warning_text


def step(number, **fields):
    loss = 4.0 / number
    event = {"event": "step", "step": number, "loss": loss, "lr": 1e-4, "grad_norm": 1.0, "tokens": 100}
    return {**event, "tokens_per_s": 50.0, "seconds": 2.0, **fields}


def run(directory, *events, tail=""):
    directory.mkdir(exist_ok=True)
    start = {"event": "run_start", "name": "demo", "model": "ernie45", "total_steps": 10}
    lines = [json.dumps(event) for event in (start, *events)]
    (directory / "events.jsonl").write_text("\n".join(lines) + "\n" + tail)
    return directory


END = {"event": "run_end", "status": "ok", "steps": 3, "tokens": 300, "seconds": 6.5}


class Checker(HTMLParser):
    """Collects tags and refuses what is never closed."""

    void = {"meta", "rect", "line", "circle", "path", "i", "link", "img", "br"}

    def __init__(self):
        super().__init__()
        self.stack, self.tags, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.void:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.stack.pop() == tag


def parse(path):
    checker = Checker()
    checker.feed(path.read_text(encoding="utf-8"))
    assert checker.stack == []
    return checker


def test_a_finished_run_gives_a_page_and_a_picture(tmp_path):
    written = write_report(run(tmp_path / "r", step(1), step(2), step(3), END))
    assert [p.name for p in written.paths] == ["report.html", "loss.png"]
    assert written.notes == []
    assert (tmp_path / "r" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_planned_stands_beside_what_was(tmp_path):
    planned = {"planned_seconds": 2.5, "tensor_memory": 300 << 20, "planned_memory": 200 << 20}
    write_report(run(tmp_path / "r", step(1), {**END, **planned}))
    page = (tmp_path / "r" / "report.html").read_text()
    assert "mean; planned 2.5" in page
    assert "300 MiB" in page
    assert "estimated 200 MiB" in page


def test_the_page_is_well_formed_and_draws_every_curve(tmp_path):
    memory = 700 * 2**20
    write_report(run(tmp_path, *(step(i, peak_memory=memory) for i in range(1, 9)), END))
    page = parse(tmp_path / "report.html")
    assert page.tags.count("svg") == 6  # the loss also as a phone shows it
    text = (tmp_path / "report.html").read_text()
    for word in ("gradient norm", "learning rate", "tokens per second", "700 MiB"):
        assert word in text


def test_the_page_needs_no_script_and_no_network(tmp_path):
    write_report(run(tmp_path, step(1), step(2), END))
    page = parse(tmp_path / "report.html")
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert not [v for k, v in page.attributes if k in ("src", "href") or k.startswith("on")]
    assert not re.search(r"https?://|url\(|@import", (tmp_path / "report.html").read_text())


def test_texts_of_the_run_are_escaped(tmp_path):
    nasty = "<script>alert('x')</script>"
    start = {"event": "run_start", "name": nasty, nasty: nasty}
    events = [{"event": "warning", "message": nasty, "step": 1}, {"event": "checkpoint", "path": nasty, "step": nasty}]
    (tmp_path / "data_report.json").write_text(json.dumps({nasty: {"rows": 1, "kept": 1}}))
    (tmp_path / "<b>.txt").write_text("")
    write_report(run(tmp_path, start, step(1), *events, {**END, "status": nasty}))
    assert "script" not in parse(tmp_path / "report.html").tags
    assert "&lt;script&gt;" in (tmp_path / "report.html").read_text()


def test_a_torn_last_line_is_noted_and_the_rest_shown(tmp_path):
    run(tmp_path, step(1), step(2), tail='{"event": "step", "st')
    written = write_report(tmp_path)
    assert written.notes[0].startswith("the last line of events.jsonl is cut off")
    record = read_run(tmp_path)
    assert list(record.steps) == [1, 2]
    assert record.status == "unfinished"


def test_a_torn_line_in_the_middle_is_counted(tmp_path):
    run(tmp_path, step(1), tail='{"event": "st\n' + json.dumps(step(2)) + "\n[1]\n\xff\n")
    record = read_run(tmp_path)
    assert list(record.steps) == [1, 2]
    assert record.notes == ["events.jsonl: unreadable and left out: 3 lines"]


def test_a_run_without_steps_has_a_page(tmp_path):
    written = write_report(run(tmp_path))
    assert "No steps have been recorded yet" in (tmp_path / "report.html").read_text()
    assert any("no loss.png" in note for note in written.notes)


def test_an_empty_events_file_has_a_page(tmp_path):
    (tmp_path / "events.jsonl").write_text("")
    write_report(tmp_path)
    parse(tmp_path / "report.html")


def test_a_loss_that_is_not_a_number_does_not_break_the_page(tmp_path):
    write_report(run(tmp_path, step(1), step(2, loss=float("nan")), step(3, loss="NaN"), step(4, loss=None), step(5)))
    assert parse(tmp_path / "report.html").tags.count("svg") == 5


def test_null_is_what_a_number_that_is_not_finite_is_written_as(tmp_path):
    record = read_run(run(tmp_path, step(1), step(2, loss=None), step(3, lr="x")))
    assert [math.isnan(value) for _, value in record.series("loss")] == [False, True, False]
    assert len(record.series("lr")) == 2


def test_the_plan_and_the_start_are_shown(tmp_path):
    start = {"event": "run_start", "time": 0.5, "plan": [["memory", "1.5 MiB"]], "parameters": 80192}
    write_report(run(tmp_path, start, step(1)))
    text = (tmp_path / "report.html").read_text()
    for word in ("1970-01-01 00:00:00 UTC", "1.5 MiB", "80,192", "<th>restarts</th><td>1</td>"):
        assert word in text


def test_steps_without_curves_are_not_called_missing(tmp_path):
    write_report(run(tmp_path, step(1)))
    text = (tmp_path / "report.html").read_text()
    assert "<svg" not in text
    assert "No steps" not in text


def test_hyperparameters_are_listed_with_their_sources_the_defaults_behind_them(tmp_path):
    train = "train:\n  epochs: 2.0  # run.yaml:3\n  ema: 0.0  # default\n  learning_rate: 3e-05  # default\n"
    (tmp_path / "resolved.yaml").write_text(
        "# a comment: no setting\n" + train + "formats:\n  text:\n    field: '<b>  # x'  # command line\n"
    )
    write_report(run(tmp_path, step(1), step(2)))
    chosen, _, defaults = (tmp_path / "report.html").read_text().partition("<details>")
    for key, value, source in (
        ("train.epochs", "2.0", "run.yaml:3"),
        ("train.learning_rate", "3e-05", "default"),
        ("formats.text.field", "&#39;&lt;b&gt;  # x&#39;", "command line"),
    ):
        cells = f'<tr><td><code>{key}</code></td><td><code>{value}</code></td><td class="note">{source}</td></tr>'
        assert cells in chosen
    assert "1 more setting" in defaults
    assert "train.ema" in defaults


def test_only_checkpoints_that_are_there_are_listed(tmp_path):
    events = [{"event": "checkpoint", "step": n, "path": f"elsewhere/r/ckpt/step-{n:08d}"} for n in (1, 2, 2)]
    (tmp_path / "ckpt" / "step-00000002").mkdir(parents=True)
    write_report(run(tmp_path, step(1), step(2), *events))
    text = (tmp_path / "report.html").read_text()
    assert text.count("<code>ckpt/step-00000002</code>") == 1
    assert "step-00000001" not in text


def test_a_run_whose_losses_are_all_nan_still_shows_the_rest(tmp_path):
    write_report(run(tmp_path, step(1, loss=float("nan"))))
    parse(tmp_path / "report.html")
    assert "nan" in summary_text(read_run(tmp_path))


def test_a_resumed_run_shows_each_step_once(tmp_path):
    again = {"event": "run_start", "name": "demo", "resumed_from": 1}
    record = read_run(run(tmp_path, step(1), step(2, loss=9.0), again, step(2), step(3)))
    assert record.series("loss") == [(1, 4.0), (2, 2.0), (3, 4 / 3)]
    assert len(record.starts) == 2


def test_an_end_before_a_resumption_is_not_the_end(tmp_path):
    record = read_run(run(tmp_path, step(1), END, {"event": "run_start"}, step(2)))
    assert record.status == "unfinished"


def test_steps_without_optional_fields_are_fine(tmp_path):
    write_report(run(tmp_path, {"event": "step", "step": 1, "loss": 2.0}, {"event": "step"}, {"no": "event"},
                     {"event": "step", "step": 2, "loss": 1.0}))  # fmt: skip
    assert parse(tmp_path / "report.html").tags.count("svg") == 2


def test_evaluations_are_listed_with_all_their_metrics(tmp_path):
    evals = [{"event": "eval", "step": 2, "loss": 1.5}, {"event": "eval", "step": 4, "loss": 1.25, "accuracy": 0.75}]
    write_report(run(tmp_path, step(1), *evals, END))
    text = (tmp_path / "report.html").read_text()
    assert "accuracy" in text
    assert "1.25" in text


def test_a_directory_without_events_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a run directory"):
        write_report(tmp_path)


def test_nothing_temporary_stays(tmp_path):
    write_report(run(tmp_path, step(1), END))
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_the_head_says_how_many_rows_were_kept(tmp_path):
    data = {
        "eval": {"rows": 2, "kept": 2, "truncated": 0, "dropped": 0},
        "train": {"rows": 1200, "kept": 1190, "truncated": 7, "dropped": 3},
    }
    run(tmp_path, step(1), END)
    assert "rows kept" not in summary_text(read_run(tmp_path))
    (tmp_path / "data_report.json").write_text(json.dumps(data))
    (line,) = [line for line in summary_text(read_run(tmp_path)).splitlines() if "rows kept" in line]
    assert line.split() == ["rows", "kept", "1,190", "(of", "1,200,", "7", "truncated,", "3", "dropped)"]
    write_report(tmp_path)
    assert "of 1,200, 7 truncated, 3 dropped" in (tmp_path / "report.html").read_text()


def test_an_unreadable_data_report_is_noted(tmp_path):
    run(tmp_path, step(1), END)
    (tmp_path / "data_report.json").write_text("{")
    assert read_run(tmp_path).notes == ["data_report.json is unreadable"]


def test_the_row_statistics_is_found_at_any_level_with_reasons_counted():
    data = {"sets": {"train": {"rows": 5, "kept": 3, "truncated": 1, "dropped": {"empty": 1}, "errors": [1]}}}
    (row,) = row_statistics(data)
    assert (row.name, row.rows, row.kept, row.truncated, row.dropped) == ("train", 5, 3, 1, 1)


def test_the_text_has_the_figures_and_the_loss_table(tmp_path):
    text = summary_text(read_run(run(tmp_path, *(step(i) for i in range(1, 31)), END)))
    assert text.startswith("demo: ok\n")
    assert "0.1333  (from 4 at step 1)" in text
    assert len(re.findall(r"^ +\d+ +[\d.]+ +1$", text, re.MULTILINE)) == 10


def test_the_loss_table_has_the_first_and_the_last_step(tmp_path):
    record = read_run(run(tmp_path, *(step(i) for i in range(1, 100))))
    assert [row[0] for row in loss_table(record, 3)] == [1, 50, 99]
    assert [row[0] for row in loss_table(record, 1)] == [1]


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1.0), (True, None), ("x", None), (None, None), ("-inf", float("-inf"))]
)
def test_only_numbers_are_numbers(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize(("seconds", "text"), [(4.23, "4.2 s"), (185, "3m 05s"), (7_640, "2h 07m")])
def test_durations_are_readable(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"event": "warning", "time": 1.0, "kind": "setup", "message": "slow"}, "slow"),
        ({"event": "warning", "time": 1.0, "kind": "numerics", "step": 3, "samples": ["a:1"]}, "numerics, step 3"),
        ({"event": "warning"}, ""),
    ],
)
def test_a_warning_reads_as_text_and_not_as_a_record(event, text):
    assert warning_text(event) == text
