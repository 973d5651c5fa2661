"""``ernie runs report``: output, JSON, exit codes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys

from event_runs import ernie as ernie  # the fixtures
from event_runs import run_dir as run_dir

from erniecore.errors import Exit


def test_a_report_is_written_and_summarized(ernie, run_dir):
    code, out, _ = ernie("runs", "report", run_dir)
    assert code == 0
    assert out.startswith("demo: finished")
    assert str(run_dir / "report.html") in out
    assert (run_dir / "report.html").is_file()


def test_without_a_directory_the_newest_run_is_reported(ernie, run_dir, monkeypatch):
    monkeypatch.chdir(run_dir.parent)
    run_dir.parent.joinpath("runs").mkdir()
    run_dir.rename(run_dir.parent / "runs" / "run")
    code, out, _ = ernie("runs", "report", "--json")
    assert code == 0
    assert json.loads(out)["paths"][0] == "runs/run/report.html"


def test_without_any_run_the_report_is_a_usage_error(ernie, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ernie("runs", "report")[0] == Exit.USAGE


def test_a_report_imports_no_paddle(run_dir):
    script = (
        "import sys; from erniecore.cli.app import main; code = main(sys.argv[1:]); "
        "print('paddle' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "runs", "report", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"
