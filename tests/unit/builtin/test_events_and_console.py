"""Events as files and as text."""

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from erniecore.builtin import console, events, live
from erniecore.builtin.single import plugin as single
from erniecore.config.core import LogSection
from erniecore.errors import ConfigError
from erniecore.plugin import EmptyConfig
from erniecore.types.run import Cluster


class Run(SimpleNamespace):
    __hash__ = object.__hash__


def make_run(out=Path("out"), every=10, total=30):
    return Run(
        out=out, total_steps=total, step=0, console="auto", settings=SimpleNamespace(log=LogSection(every=every))
    )


def step(number, **more):
    fields = {"loss": 2.5, "lr": 1e-3, "grad_norm": 0.5, "tokens": 100, "tokens_per_s": 1234.0, "seconds": 0.1}
    return {"event": "step", "time": 0.0, "step": number, **fields, **more}


START = {
    "event": "run_start",
    "time": 0.0,
    "version": "0.1.0",
    "name": "n",
    "device": "cpu",
    "python": "3.11",
    "paddle": "3.3",
    "plan": [["model", "tiny 1.0 k parameters"], ["disk", "1 KiB"]],
    "data": ["train 10 rows = 9 kept"],
    "notes": ["continuing from x"],
}
ALL = [
    START,
    step(1),
    {"event": "eval", "time": 0.0, "step": 10, "loss": 2.0, "perplexity": 7.4, "seconds": 0.1},
    {"event": "checkpoint", "time": 0.0, "step": 10, "path": "p", "bytes": 2**20, "seconds": 0.1},
    {"event": "warning", "time": 0.0, "kind": "numerics", "step": 3, "samples": ["a:1"]},
    {"event": "run_end", "time": 0.0, "status": "finished", "steps": 30, "tokens": 99, "seconds": 1.0},
    {"event": "unknown to this version", "time": 0.0},
]


def test_each_event_is_one_line_of_json(tmp_path):
    for event in ALL:
        events.plugin.ernie_event(make_run(tmp_path), event)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == [e["event"] for e in ALL]


def test_line_that_a_killed_process_left_is_ended_first(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "st')
    events.plugin.ernie_event(make_run(tmp_path), step(1))
    half, whole = (tmp_path / "events.jsonl").read_text().splitlines()
    assert half == '{"event": "st'
    assert json.loads(whole)["step"] == 1


def test_the_console_shows_as_the_run_was_told_to(capsys):
    run = make_run()
    run.console = "json"
    console.plugin.ernie_event(run, START)
    console.plugin.ernie_run_end(run)
    assert json.loads(capsys.readouterr().out)["event"] == "run_start"


def test_values_become_strict_json():
    assert events.plain({"a": (1, float("nan")), 2: Path("x"), "c": None, "d": True}) == {
        "a": [1, None],
        "2": "x",
        "c": None,
        "d": True,
    }


RUN = console.Shown(every=10, total_steps=30, out=Path("out"))


def shown(display, what=ALL):
    for event in what:
        display.show(event)
    display.close()
    return display.stream.getvalue()


def test_lines_hold_no_control_characters():
    text = shown(console.LineDisplay(io.StringIO(), RUN))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    for word in ("plan", "train 10 rows", "continuing from x", "loss 2.5000", "eval", "save", "warn", "finished"):
        assert word in text


def test_plan_box_is_straight():
    box = [line for line in shown(console.LineDisplay(io.StringIO(), RUN)).splitlines() if line[0] in "+|"]
    assert len({len(line) for line in box}) == 1


def test_steps_are_thinned_but_the_first_and_last_are_shown():
    text = shown(console.LineDisplay(io.StringIO(), RUN._replace(total_steps=25)), [step(n) for n in range(1, 26)])
    assert re.findall(r"step   (\d+)/25", text) == ["1", "10", "20", "25"]


def test_skipped_step_is_marked():
    assert "SKIPPED" in shown(console.LineDisplay(io.StringIO(), RUN), what=[step(1, skipped=1)])


def test_further_metrics_are_shown():
    assert "mtp/loss 3.1" in shown(console.LineDisplay(io.StringIO(), RUN), what=[step(1, **{"mtp/loss": 3.1})])


def test_json_display_shows_every_event():
    text = shown(console.JsonDisplay(io.StringIO()))
    assert [json.loads(line)["event"] for line in text.splitlines()] == [e["event"] for e in ALL]


def test_live_line_fits_into_80_columns():
    event = step(99_999, loss=12.3456, tokens_per_s=123456.0, eta=359_999.0, peak_memory=2**37)
    assert len("step 99999/100000 ######## " + live.describe_briefly(event)) <= 80


def test_time_left_is_shown():
    assert "ETA 1:01:05" in shown(console.LineDisplay(io.StringIO(), RUN), what=[step(1, eta=3665.9)])


def test_live_display_keeps_other_events_above_the_line():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    text = shown(live.LiveDisplay(Terminal(), RUN))
    assert "plan" in text
    assert "finished" in text


@pytest.mark.parametrize(
    ("mode", "cls"), [("auto", "LineDisplay"), ("json", "JsonDisplay"), ("none", "NoDisplay"), ("live", "LiveDisplay")]
)
def test_choice_of_display(mode, cls):
    assert type(console.choose(mode, io.StringIO(), RUN)).__name__ == cls


def test_console_plugin_keeps_no_state_and_forgets_the_run(capsys):
    run = make_run()
    console.plugin.ernie_event(run, START)
    console.plugin.ernie_run_end(run)
    assert vars(console.plugin) == {}
    assert run not in console._displays
    assert "plan" in capsys.readouterr().out


def test_single_refuses_several_processes():
    with pytest.raises(ConfigError):
        single.ernie_plan_parallel(EmptyConfig(), Cluster(rank=0, world_size=2))
    assert single.ernie_plan_parallel(EmptyConfig(), Cluster()).data_size == 1
