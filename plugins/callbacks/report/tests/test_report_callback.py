"""The callback of the report: what it leaves at the end of a run, and that its failure ends nothing."""

from types import SimpleNamespace

from erniecore_report import plugin as report


def make_run(out, *, is_main=True):
    emitted = []
    return SimpleNamespace(
        out=out, is_main=is_main, emit=lambda event, **fields: emitted.append((event, fields)), emitted=emitted
    )


def test_what_the_report_lacks_is_in_the_log(tmp_path, caplog):
    (tmp_path / "events.jsonl").write_text('{"event": "run_start", "name": "x"}\n')  # no step, so nothing to draw
    with caplog.at_level("INFO", logger="erniecore"):
        report.plugin.ernie_run_end(make_run(tmp_path), None)
    assert (tmp_path / "report.html").exists()
    assert "no two finite losses" in caplog.text


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path):
    run = make_run(tmp_path)  # no events.jsonl
    report.plugin.ernie_run_end(run, None)
    ((event, fields),) = run.emitted
    assert (event, fields["kind"]) == ("warning", "report")
    assert f"ernie runs report {tmp_path}" in fields["message"]


def test_other_ranks_write_nothing(tmp_path):
    run = make_run(tmp_path, is_main=False)
    report.plugin.ernie_run_end(run, None)
    assert (run.emitted, list(tmp_path.iterdir())) == ([], [])
