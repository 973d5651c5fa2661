"""``ernie runs``: output, JSON, exit codes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys

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


def test_the_list_imports_no_paddle(run_dir):
    script = (
        "import sys; from erniecore.cli.app import main; code = main(sys.argv[1:]); "
        "print('paddle' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "runs", "list", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"
