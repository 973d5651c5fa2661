"""Callbacks with one thing wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore.api import hookimpl
from erniecore.api.method import RunView
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.others import ToyCallbackPlugin

_last: dict[str, Any] = {}
_open: list[int] = []


class KnowsItsEvents(ToyCallbackPlugin):
    """An event that it does not know is an error."""

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        {"run_start", "step", "eval", "checkpoint", "warning", "run_end"}.remove(event["event"])


class WritesOnEveryRank(ToyCallbackPlugin):
    """Every rank writes a file of its own."""

    @hookimpl
    def ernie_step_end(self, run: RunView, step: int, metrics: Mapping[str, float]) -> None:
        (run.out / "steps.txt").write_text(str(step), encoding="utf-8")


class NeedsStep(ToyCallbackPlugin):
    """A run that failed before its first step divides by zero."""

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        if event["event"] == "run_end" and event["status"] == "failed":
            (run.out / "rate.txt").write_text(str(event["tokens"] / event["steps"]), encoding="utf-8")


class NeedsStart(ToyCallbackPlugin):
    """The end looks for what the first event left behind."""

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        if event["event"] == "run_start":
            _last[str(run.out)] = run

    @hookimpl
    def ernie_run_end(self, run: RunView, error: BaseException | None) -> None:
        if run.is_main:
            _last.pop(str(run.out))


class LeavesOpen(ToyCallbackPlugin):
    """The file of a failed run stays open."""

    @hookimpl
    def ernie_run_end(self, run: RunView, error: BaseException | None) -> None:
        if error is not None and run.step and run.is_main:
            _open.append(os.open(run.out / "toy.txt", os.O_CREAT | os.O_WRONLY))


class WritesBeside(ToyCallbackPlugin):
    """Notes the last run beside the run directory."""

    @hookimpl
    def ernie_run_end(self, run: RunView, error: BaseException | None) -> None:
        if run.is_main and run.out.name == "run":
            (run.out.parent / "last-run.txt").write_text(run.out.name, encoding="utf-8")


class OneRunAtATime(ToyCallbackPlugin):
    """Events of any run go to the file of the run that started last."""

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        _last["out"] = run.out

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        out: Path = _last.get("out", run.out)
        if event["event"] == "step" and out.is_dir():
            with (out / "toy.jsonl").open("a", encoding="utf-8") as file:
                file.write("step\n")


class NotANumber(ToyCallbackPlugin):
    """A metric that is no number."""

    @hookimpl
    def ernie_collect_metrics(self, run: RunView, step: int) -> Mapping[str, float]:
        return {"toy/step": float("nan")}


MUTANTS = (
    mutant(
        "callback_watches_a_whole_run",
        KnowsItsEvents,
        also=(
            "every_is_stateless",
            "callback_survives_failed_runs",
            "callback_closes_its_files",
            "callback_writes_into_the_run_only",
        ),
    ),
    mutant("callback_watches_other_ranks", WritesOnEveryRank),
    mutant("callback_survives_failed_runs", NeedsStep, also=("callback_survives_early_end",)),
    mutant("callback_survives_early_end", NeedsStart),
    mutant("callback_closes_its_files", LeavesOpen),
    mutant("callback_writes_into_the_run_only", WritesBeside),
    mutant("callback_keeps_runs_apart", OneRunAtATime),
    mutant("callback_metrics_are_numbers", NotANumber),
)
