"""``ernie runs``: output, JSON, exit codes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from event_runs import ernie as ernie  # the fixtures
from event_runs import run_dir as run_dir

from erniecore.errors import Exit


def test_runs_are_listed(ernie, run_dir):
    code, out, _ = ernie("runs", "list", run_dir.parent)
    assert code == 0
    assert out.splitlines()[1].split() == ["demo", "finished", "30", "0.1000", str(run_dir)]


def test_runs_as_json(ernie, run_dir):
    (row,) = json.loads(ernie("runs", "list", run_dir, "--json")[1])
    assert (row["name"], row["status"], row["steps"], row["starts"]) == ("demo", "finished", 30, 1)


def test_a_directory_that_does_not_exist_has_no_runs(ernie, tmp_path):
    assert ernie("runs", "list", tmp_path / "nowhere")[0] == Exit.USAGE


@pytest.mark.parametrize("arguments", [[], ["--now"]])
def test_what_does_not_run_cannot_be_stopped(ernie, run_dir, tmp_path, arguments):
    code, _, errors = ernie("runs", "stop", run_dir, *arguments)
    assert code == Exit.USAGE
    assert "nothing runs" in errors
    assert not (run_dir / "control" / "stop").exists()
    code, _, errors = ernie("runs", "stop", tmp_path / "nowhere", *arguments)
    assert code == Exit.USAGE
    assert "not a run directory" in errors


def test_a_lock_is_taken_by_the_processes_that_the_kernel_names(run_dir):
    from erniecore_runs.stopping import holders, taken_locks

    lock = run_dir / "control" / "lock-0"
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    script = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script, str(lock)], **pipes) as holder:
        holder.stdout.readline()
        assert taken_locks(run_dir) == [lock]
        assert list(holders(lock)) == [holder.pid]
        holder.stdin.close()
    assert taken_locks(run_dir) == []
    assert list(holders(lock)) == []


def test_the_list_imports_no_paddle(run_dir):
    script = (
        "import sys; from erniecore.cli.app import main; code = main(sys.argv[1:]); "
        "print('paddle' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "runs", "list", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"


@pytest.fixture
def two_runs(run_dir, tmp_path):
    """The run, with settings, and one with another rate, two evaluations, and a last loss that was not finite."""
    settings = 'run:\n  out: "{0}"  # command line\n  seed: 42  # default\ntrain:\n  learning_rate: {1}  # run.yaml:3\n'
    (run_dir / "resolved.yaml").write_text(settings.format(run_dir, "1e-3"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "resolved.yaml").write_text(settings.format(other, "2e-3") + "method:\n  beta: 0.1  # default\n")
    events = [{"event": "run_start"}, *({"event": "eval", "step": i, "loss": 2.0 / i} for i in (1, 2))]
    events += [{"event": "step", "step": 1, "loss": None, "lr": 0.2, "eta": 3.0, "time": 1.0}]
    (other / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run_dir, other


def test_runs_are_compared(ernie, two_runs):
    code, out, errors = ernie("runs", "compare", *two_runs)
    assert (code, errors) == (0, "")
    rows = {cells[0]: cells[1:] for line in out.splitlines() if (cells := line.split())}
    assert rows["status"] == ["finished", "unfinished"]
    assert (rows["train.learning_rate"], rows["method.beta"]) == (["1e-3", "2e-3"], ["-", "0.1"])
    assert (rows["train/loss"], rows["eval/loss"], rows["total/steps"]) == (["0.1", "nan"], ["-", "1"], ["30", "-"])
    assert not {"run.seed", "run.out", "train/eta", "train/step", "train/time"} & set(rows)


def test_a_comparison_as_json(ernie, two_runs):
    found = json.loads(ernie("runs", "compare", *two_runs, "--json")[1])
    assert [run["path"] for run in found["runs"]] == list(map(str, two_runs))
    assert found["settings"] == {"train.learning_rate": ["1e-3", "2e-3"], "method.beta": [None, "0.1"]}
    assert (found["metrics"]["train/lr"], found["metrics"]["train/loss"]) == ([0.1, 0.2], [0.1, None])


def test_a_run_without_settings_differs_in_none(ernie, two_runs):
    (two_runs[1] / "resolved.yaml").unlink()
    code, out, errors = ernie("runs", "compare", *two_runs)
    assert code == 0
    assert "no setting differs" in out
    assert f"{two_runs[1]}: no readable resolved.yaml" in errors


def test_what_cannot_be_compared(ernie, run_dir, tmp_path):
    code, _, errors = ernie("runs", "compare", run_dir)
    assert code == Exit.USAGE
    assert "two run directories" in errors
    code, _, errors = ernie("runs", "compare", run_dir, tmp_path / "nowhere")
    assert code == Exit.USAGE
    assert "not a run directory" in errors
