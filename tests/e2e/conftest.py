"""A tiny model directory, data files and settings, made once; runs in this process or as real subprocesses."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from processes import user_environ
from small_model import make_home


class Outcome(NamedTuple):
    """How ``ernie`` ended: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def run_subprocess(*words, env=None, cwd=None, before=()):
    """``python -m erniecore WORDS`` to its end; ``before``: a command that runs it, such as ``prlimit``."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "erniecore", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=user_environ(**(env or {})),
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def run_ernie(warm):
    """``run_ernie(*words, env={}, cwd=None)``: a process of its own, a fork of one that has imported paddle; with
    ``before=…`` it begins with a fresh interpreter, as a user's does."""

    def run(*words, env=None, cwd=None, before=()):
        if before:
            return run_subprocess(*words, env=env, cwd=cwd, before=before)
        process = warm.start(words, Path(cwd or Path.cwd()), user_environ(**(env or {})))
        out, errors = process.communicate()
        return Outcome(process.returncode, out, errors)

    return run


#: A process inherits its parent's peak at the fork, so a small one stands between.
_WATCH = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)"""


@pytest.fixture(scope="session")
def measure():
    """``measure(*words)``: outcome, and the most memory that the process held, in MiB."""

    def run(*words):
        outcome = run_subprocess(*words, before=[sys.executable, "-c", _WATCH])
        errors, _, peak = outcome.err.rstrip().rpartition("\n")
        return outcome._replace(err=errors), int(peak) / 1024

    return run


@pytest.fixture
def ernie(capsys, monkeypatch):
    """``ernie(*words, env={})``: the same in this process; much faster, as paddle is here already."""
    from erniecore.cli.app import main

    monkeypatch.setenv("NO_COLOR", "1")

    def call(*words, env=None):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def assert_refused(outcome, code, *places, remedy):
    """The exit code, the one shape of errors, the places by name, the remedy; and nothing that only we understand."""
    assert outcome.code == code, outcome
    assert re.search(rf"^error ERN-[A-Z]\d{{3}}  .*  exit {int(code)}$", outcome.err, re.MULTILINE), outcome.err
    for text in (*places, remedy):
        assert str(text) in outcome.err, f"{text!s} is not in:\n{outcome.err}"
    assert "Traceback" not in outcome.err
    assert "this is a bug" not in outcome.err


@pytest.fixture
def refuses(ernie):
    """``refuses(words, code, *places, remedy=…)``: runs a command in this process and asserts how it is refused."""

    def check(words, code, *places, remedy, env=None):
        outcome = ernie(*words, env=env)
        assert_refused(outcome, code, *places, remedy=remedy)
        return outcome

    return check


@pytest.fixture(scope="session")
def refused():
    """``assert_refused`` for outcomes of subprocesses."""
    return assert_refused


@pytest.fixture(scope="session")
def snapshot():
    """``snapshot(directory)``: every file below it with its bytes, to show that nothing was lost."""

    def take(directory):
        return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}

    return take


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A directory with the models ``base`` (dense) and ``moe``, their tokenizer ``tok``, ``train.jsonl``, ``eval.jsonl``."""
    return make_home(tmp_path_factory.mktemp("e2e"))


class Runner:
    """Runs with the same settings in one temporary directory."""

    warm = None  # for all

    def __init__(self, home, directory):
        self.home, self.directory = home, directory

    def words(self, out="out", **changes):
        keys = {
            "model.path": self.home / "base",
            "data.train": self.home / "train.jsonl",
            "data.max_seq_len": 64,
            "train.batch_size": 2,
            "train.learning_rate": 3e-3,
            "train.max_steps": 8,
            "run.out": self.directory / out,
            "log.report": "false",
            **{key.replace("__", "."): value for key, value in changes.items()},
        }
        return ["model.name=ernie45", "method.name=sft", *(f"{k}={v}" for k, v in keys.items() if v is not None)]

    def run(self, out="out", **changes):
        """In this process; returns the result."""
        import erniecore

        return erniecore.run(overrides=self.words(out, **changes), console="none")

    def start(self, out="out", words=(), warm=False, **changes):
        """``ernie run`` as a process of its own; ``words``: further ones. ``warm``: a fork of one that has imported paddle,
        where neither the start nor the end of the process is what is tested."""
        environ = user_environ()
        words = ["run", *self.words(out, **changes), *words]
        if warm:
            return self.warm.start(words, self.directory, environ)
        return subprocess.Popen(
            [sys.executable, "-m", "erniecore", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=environ,
        )

    def signal_at(self, step, number, out="out", warm=False, **changes):
        """Start, send a signal once the line of ``step`` is printed; returns (exit code, stdout, stderr)."""
        process = self.start(out, warm=warm, **{"log__every": 1, **changes})
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(f"step   {step}/"):
                process.send_signal(number)
                break
        rest, errors = process.communicate()
        return process.returncode, "".join(lines) + rest, errors

    def complete(self, out="out", warm=True, **changes):
        """A process that runs to its end; what is compared bit for bit must not mix with runs in this process, where
        paddle may have been imported before the device could choose its code path."""
        process = self.start(out, warm=warm, **changes)
        _, errors = process.communicate()
        assert process.returncode == 0, errors

    def kill_at(self, step, out="out", warm=True, **changes):
        """SIGKILL, really."""
        code, _, errors = self.signal_at(step, signal.SIGKILL, out, warm, **changes)
        assert code == -signal.SIGKILL, errors

    def events(self, kind, out="out"):
        """Events of a kind, over all sessions; unreadable lines are passed over."""
        found = []
        for line in (self.directory / out / "events.jsonl").read_text().splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event["event"] == kind:
                found.append(event)
        return found

    def curve(self, out="out"):
        """Step -> what must be equal bit for bit; the last line of a step counts."""
        return {e["step"]: (e["loss"], e["grad_norm"], e["lr"], e["tokens"]) for e in self.events("step", out)}

    def tensors(self, step, out="out"):
        """Everything that the checkpoint of ``step`` holds, as bytes."""
        from erniecore_checkpoint.reader import load_checkpoint

        checkpoint = load_checkpoint(Path(self.directory / out / "ckpt" / f"step-{step:08d}"))
        return {(g, n): array.tobytes() for g, members in checkpoint.tensors.items() for n, array in members.items()}


@pytest.fixture(scope="session", autouse=True)
def _warm_runners(warm):
    Runner.warm = warm


@pytest.fixture(scope="session")
def runner_class():
    """For runs from another home."""
    return Runner


@pytest.fixture
def runner(home, tmp_path):
    """A runner in a fresh directory."""
    return Runner(home, tmp_path)


@pytest.fixture(scope="session")
def trained_once(home, tmp_path_factory):
    """A finished run of six steps with the checkpoints 2, 4 and 6."""
    runner = Runner(home, tmp_path_factory.mktemp("trained"))
    runner.run(train__max_steps=6, checkpoint__every=2)
    return runner.directory / "out"


@pytest.fixture
def trained(trained_once, runner):
    """A copy of it as ``out`` of this test's runner."""
    return shutil.copytree(trained_once, runner.directory / "out")
