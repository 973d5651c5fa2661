"""The page, the report and VisualDL draw the same numbers: those of the events."""

import json
from importlib.util import find_spec

import pytest
from erniecore_webui.curves import Curves

import erniecore
from erniecore.types.events import metrics

#: what VisualDL and its dependencies warn about on current Python is not ours to fix
OTHERS = ".*(visualdl|baidubce|rarfile|past|future).*"
pytestmark = [
    pytest.mark.skipif(find_spec("visualdl") is None, reason="visualdl is not installed"),
    pytest.mark.filterwarnings(f"ignore::SyntaxWarning:{OTHERS}"),
    pytest.mark.filterwarnings(f"ignore::DeprecationWarning:{OTHERS}"),
]
STEPS = 7


@pytest.fixture(scope="module")
def trained(talker, tmp_path_factory):
    """A run that VisualDL watched, and its events."""
    out = tmp_path_factory.mktemp("same") / "run"
    settings = {
        "model.path": talker / "model", "method.name": "sft", "data.format": "messages", "data.max_seq_len": 96,
        "data.train": talker / "rows.jsonl", "data.eval": talker / "rows.jsonl", "train.max_steps": STEPS, "eval.every": 3,
        "train.batch_size": 2, "callbacks": "[visualdl]", "checkpoint.export": "false", "run.out": out,
    }  # fmt: skip
    erniecore.run(overrides=[f"{key}={value}" for key, value in settings.items()], console="none")
    return out, [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def drawn_by_visualdl(out):
    """(what, step) -> value as it is in float32, which VisualDL keeps."""
    from visualdl import LogReader

    (file,) = (out / "visualdl").glob("*vdlrecords*")
    reader = LogReader(file_path=str(file))
    names = reader.get_tags()["scalar"]
    return {(name.replace("%", "/"), r.id): r.value for name in names for r in reader.get_data("scalar", name)}


def test_page_report_and_visualdl_have_the_numbers_of_the_events(trained):
    from erniecore_report.write import charts
    from erniecore_runs.record import read_run

    out, events = trained
    told = {
        (where, name, event["step"]): value
        for kind, where in (("step", "train"), ("eval", "eval"))
        for event in events
        if event["event"] == kind
        for name, value in metrics(event).items()
    }
    assert {("train", "loss", step) for step in range(1, STEPS + 1)} | {("eval", "loss", 3)} <= told.keys()
    curves = Curves(out)
    assert curves.read() == 1.0
    points = curves.points()
    page = {
        (where, name, x): y
        for where, found in (("train", points["metrics"]), ("eval", points["evals"]))
        for name, curve in found.items()
        for x, y in zip(curve["x"], curve["y"], strict=True)
    }
    assert page == told
    visualdl = {(*name.split("/", 1), step): value for (name, step), value in drawn_by_visualdl(out).items()}
    assert visualdl.keys() == told.keys()
    assert visualdl == pytest.approx(told, rel=1e-6)
    record = read_run(out)
    for name in ("loss", "grad_norm", "lr", "tokens_per_s"):
        assert record.series(name) == [(step, told["train", name, step]) for step in range(1, STEPS + 1)]
    assert record.eval_series("loss") == [(key[2], value) for key, value in told.items() if key[:2] == ("eval", "loss")]
    assert len(charts(record)) >= 5
