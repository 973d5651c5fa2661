"""Stopping a real process: exit codes, what is on disk, what the console showed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial

import pytest
from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import load_checkpoint

from erniecore.errors import Exit

pytestmark = pytest.mark.slow
LONG = {"train__max_steps": 100_000, "checkpoint__every": 0}


SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM", signal.SIGHUP: "stopped by SIGHUP"}


@pytest.mark.parametrize("number", [*SAID, signal.SIGUSR1])
def test_signal_finishes_the_step_saves_and_exits_75(runner, number):
    # once with an interpreter that begins anew, as users' do
    code, out, errors = runner.signal_at(3, number, warm=number != signal.SIGTERM, **LONG)
    assert f"{SAID.get(number, 'stopped by SIGUSR1')} after step" in errors
    assert "the same command continues this run" in errors
    assert "error" not in errors
    assert f"end    {SAID.get(number, 'stopped').split()[0]}  " in out
    assert code == Exit.PREEMPTED, errors
    last = max(runner.curve())
    assert load_checkpoint(list_checkpoints(runner.directory / "out" / "ckpt")[-1]).step == last
    assert runner.events("run_end")[-1]["status"] == "preempted"
    assert "Traceback" not in out + errors


#: paddle's import, with SIGTERM at the moment at which glog's handler has just taken the place of ours
TAKEN = """
import os, runpy, signal, sys

class Taken:
    def find_spec(self, name, path=None, target=None):
        core = sys.modules.get("paddle.base.core")
        if hasattr(core, "init_glog") and self in sys.meta_path:
            sys.meta_path.remove(self)
            start = core.init_glog
            core.init_glog = lambda name: (start(name), os.kill(os.getpid(), signal.SIGTERM))

sys.meta_path.insert(0, Taken())
sys.argv = ["ernie", *sys.argv[1:]]
runpy.run_module("erniecore", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("ignored", "code"), [(False, 75), (True, 0)], ids=["caught", "ignored"])
def test_a_signal_while_paddle_has_taken_it_is_ours(runner, ignored, code):
    command = [sys.executable, "-c", TAKEN, "run", *map(str, runner.words())]
    ignore = partial(signal.signal, signal.SIGTERM, signal.SIG_IGN) if ignored else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=ignore)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("stopped by SIGTERM before the first step" in done.stderr) is not ignored
    assert "Traceback" not in done.stdout + done.stderr


SLOW = """
    import time
    from erniecore.api import Plugin, hookimpl

    class Slow(Plugin):
        kind, name, summary = "callback", "slow", "takes its time over a checkpoint"

        @hookimpl
        def ernie_checkpoint_saved(self):
            print("slow", flush=True)
            time.sleep(600)

    plugin = Slow()
"""


def test_a_second_interrupt_ends_at_once_and_says_how_to_go_on(runner, site):
    site.add("slow", {"erniecore.callbacks": {"slow": "slow_callback:plugin"}}, {"slow_callback.py": SLOW})
    command = [sys.executable, "-m", "erniecore", "run", *runner.words(log__every=1, **LONG), "--callback", "slow"]
    pipe = subprocess.PIPE
    environ = site.environ(OMP_NUM_THREADS="1")
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ) as process:
        for line in process.stdout:
            if line.startswith("step   3/") or line == "slow\n":
                process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == Exit.INTERRUPTED, errors
    assert "interrupted: finishes the step and saves; Ctrl-C again ends at once\n" in errors
    assert errors.endswith("interrupted, ended at once; the same command continues from the newest checkpoint\n")
    assert runner.events("run_end")[-1]["status"] == "interrupted"


#: what becomes of stdout and stderr, and how many warnings it is worth
CONSOLES = {"gone": 1, "full": 1, "closed": 0}


@pytest.mark.parametrize("console", CONSOLES)
def test_a_console_that_cannot_be_written_ends_no_run(runner, console):
    runner.complete("whole", train__max_steps=12)
    redirect = {"gone": "", "full": ">/dev/full 2>&1", "closed": ">&- 2>&-"}[console]
    command = [sys.executable, "-m", "erniecore", "run", *runner.words(train__max_steps=12, log__every=1)]
    if console == "gone":
        line = f"({shlex.join(command)} 2>&1; echo $? > code) | head -2 > /dev/null"
    else:
        line = f"{shlex.join(command)} {redirect}; echo $? > code"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("ERNIE_")}
    subprocess.run(["bash", "-c", line], cwd=runner.directory, env=environ, check=True)
    assert (runner.directory / "code").read_text() == "0\n"
    warnings = [e for e in runner.events("warning") if e["kind"] == "console"]
    assert len(warnings) == CONSOLES[console], warnings
    assert runner.events("run_end")[-1]["status"] == "finished"
    assert runner.tensors(12) == runner.tensors(12, "whole")


def test_a_log_that_cannot_be_written_is_one_warning(runner):
    (runner.directory / "out" / "logs").mkdir(parents=True)
    (runner.directory / "out" / "logs" / "rank-0.log").symlink_to("/dev/full")
    runner.run(train__max_steps=4)
    (warning,) = [e for e in runner.events("warning") if e["kind"] == "log"]
    assert "rank-0.log cannot be written" in warning["message"]
    assert runner.events("run_end")[-1]["status"] == "finished"


def test_preempted_run_continues_with_the_same_command(runner):
    options = {"checkpoint__every": 0, "train__max_steps": 60}
    runner.complete("straight", **options)
    code, _, errors = runner.signal_at(3, signal.SIGTERM, "stopped", warm=True, **options)
    assert code == Exit.PREEMPTED, errors
    runner.complete("stopped", **options)
    assert runner.tensors(60, "stopped") == runner.tensors(60, "straight")


@pytest.mark.parametrize(("words", "code"), [([], Exit.PREEMPTED), (["--now"], -signal.SIGKILL)], ids=["asked", "now"])
def test_a_run_is_stopped_by_a_command_and_resumes(runner, capsys, words, code):
    from erniecore.cli.app import main

    out = str(runner.directory / "out")
    options = {"checkpoint__every": 2, "train__max_steps": 4000, "log__every": 1}
    process = runner.start(warm=True, **options)
    next(line for line in process.stdout if line.startswith("save   step 2 "))
    assert main(["runs", "stop", out, *words]) == 0
    _, errors = process.communicate()
    assert process.returncode == code, errors
    reached = list_checkpoints(runner.directory / "out" / "ckpt")[-1]
    assert load_checkpoint(reached).step >= 2
    capsys.readouterr()
    assert main(["runs", "stop", out, *words]) == Exit.USAGE
    assert "nothing runs in this directory" in capsys.readouterr().err
    assert not (runner.directory / "out" / "control" / "stop").exists()
    code, out, errors = runner.signal_at(load_checkpoint(reached).step + 1, signal.SIGTERM, warm=True, **options)
    assert code == Exit.PREEMPTED, errors


def test_console_without_a_terminal_has_no_control_characters(runner):
    process = runner.start()
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out)
    assert "plan" in out
    assert "step   8/8" in out
    assert "ccache" not in errors


def test_errors_have_their_exit_codes(runner):
    cases = [
        ({"train__precision": "bfloat16"}, Exit.USAGE),
        ({"data__train": runner.directory / "nothing.jsonl"}, Exit.DATA),
        ({"run__resume": "must"}, Exit.CHECKPOINT),
    ]
    for changes, expected in cases:
        process = runner.start(**changes, warm=True)
        _, errors = process.communicate()
        assert process.returncode == expected, errors
        assert "Traceback" not in errors


def test_dry_run_prints_the_plan_and_makes_nothing(runner):
    from erniecore.cli.app import main

    assert main(["run", *runner.words(), "--dry-run"]) == 0
    assert not (runner.directory / "out").exists()


def test_dry_run_as_json(runner, capsys):
    from erniecore.cli.app import main

    assert main(["run", *runner.words(), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parameters"]["total"] > 0
    assert plan["max_steps"] == 8


def test_json_console_prints_nothing_but_json_lines(runner, capsys):
    from erniecore.cli.app import main

    assert main(["run", *runner.words(train__max_steps=2), "--json"]) == 0
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert events[0] == "run_start"
    assert events[-1] == "run_end"
    assert events.count("step") == 2
