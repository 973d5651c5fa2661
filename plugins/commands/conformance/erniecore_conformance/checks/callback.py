"""Checks for callbacks, over a run without a model."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_equal
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.run import FakeRun, finish, lifecycle, notify, one_step, start

_OPEN_FILES = Path("/proc/self/fd")


def _with_out(use: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as out:
        use(Path(out))


def _files(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def check_callback_watches_a_whole_run(subject: Subject) -> None:
    """A run from start to end, with events and metrics that nobody has heard of, raises nothing."""
    _with_out(lambda out: lifecycle(subject, out))


def check_callback_watches_other_ranks(subject: Subject) -> None:
    """On a rank that is not the main one a run raises nothing and writes no file."""

    def use(out: Path) -> None:
        lifecycle(subject, out, is_main=False)
        ensure_equal(_files(out), [], "files written by another rank")

    _with_out(use)


def check_callback_survives_failed_runs(subject: Subject) -> None:
    """A run that fails in the middle, or before its first step, can be ended."""

    def use(out: Path) -> None:
        error = RuntimeError("the run failed")
        (out / "a").mkdir()
        lifecycle(subject, out / "a", error=error)
        (out / "b").mkdir()
        run = FakeRun(out / "b", callbacks={subject.name: subject.config()})
        start(subject, run)
        finish(subject, run, error)

    _with_out(use)


def check_callback_survives_early_end(subject: Subject) -> None:
    """A run may end right after ``ernie_run_start``, before its first event."""

    def use(out: Path) -> None:
        run = FakeRun(out, callbacks={subject.name: subject.config()})
        notify(subject, "ernie_run_start", run=run)
        finish(subject, run, RuntimeError("early"))

    _with_out(use)


def check_callback_closes_its_files(subject: Subject) -> None:
    """After the end of a run no file below its directory is open, also when the run failed."""
    if not _OPEN_FILES.exists():
        raise NotApplicable("open files cannot be listed here")

    def use(out: Path) -> None:
        for error in (None, RuntimeError("failed")):
            lifecycle(subject, out, error=error)
            still_open = [p for p in _links() if p.startswith(str(out))]
            ensure(not still_open, f"open after the run: {', '.join(still_open)}")

    _with_out(use)


def _links() -> list[str]:
    found = []
    for link in _OPEN_FILES.iterdir():
        try:
            found.append(os.readlink(link))
        except OSError:  # the descriptor of the listing itself
            continue
    return found


def check_callback_writes_into_the_run_only(subject: Subject) -> None:
    """Nothing is written into the working directory or beside the run directory."""
    before = {p.name for p in Path.cwd().iterdir()}

    def use(out: Path) -> None:
        (out / "run").mkdir()
        lifecycle(subject, out / "run")
        ensure_equal([p.name for p in out.iterdir()], ["run"], "what stands beside the run directory")

    _with_out(use)
    new = {p.name for p in Path.cwd().iterdir()} - before
    ensure(not new, f"written into the working directory: {', '.join(sorted(new))}")


def check_callback_keeps_runs_apart(subject: Subject) -> None:
    """Two runs at the same time, step by step in turns, write as many files, and lines of text, as a run alone."""

    def use(out: Path) -> None:
        names = ("alone", "first", "second")
        for name in names:
            (out / name).mkdir()
        alone, *both = (FakeRun(out / name, callbacks={subject.name: subject.config()}) for name in names)
        for runs in ([alone], both):
            try:
                for act in (start, one_step, one_step):
                    for run in runs:
                        act(subject, run)
            finally:  # a plugin that takes one run at a time is to be free for the next check
                for run in runs:
                    finish(subject, run)
        expected = _line_counts(out / "alone")
        for name in names[1:]:
            ensure_equal(_line_counts(out / name), expected, "lines per kind of file of a run among others")

    _with_out(use)


def _line_counts(root: Path) -> list[tuple[str, int]]:
    """(suffix, number of lines; 0 for other files than lists of lines) of every file."""
    lists = {".jsonl", ".csv", ".log", ".txt", ".tsv"}
    files = [p for p in root.rglob("*") if p.is_file()]
    return sorted((p.suffix, p.read_bytes().count(b"\n") if p.suffix in lists else 0) for p in files)


def check_callback_metrics_are_numbers(subject: Subject) -> None:
    """``ernie_collect_metrics`` gives finite floats by non-empty names, or nothing."""

    def use(out: Path) -> None:
        run = FakeRun(out, callbacks={subject.name: subject.config()})
        start(subject, run)
        for answer in notify(subject, "ernie_collect_metrics", run=run, step=1) or ():
            for name, value in (answer or {}).items():
                ensure(isinstance(name, str) and bool(name), f"a metric is called {name!r}")
                good = isinstance(value, float | int) and math.isfinite(value)
                ensure(good, f"metric {name} is {value!r}, not a finite number")
        finish(subject, run)

    _with_out(use)


CHECKS = (
    Check(check_callback_watches_a_whole_run),
    Check(check_callback_watches_other_ranks),
    Check(check_callback_survives_failed_runs),
    Check(check_callback_survives_early_end),
    Check(check_callback_closes_its_files),
    Check(check_callback_writes_into_the_run_only),
    Check(check_callback_keeps_runs_apart),
    Check(check_callback_metrics_are_numbers),
)
