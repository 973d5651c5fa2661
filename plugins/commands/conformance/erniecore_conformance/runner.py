"""Runs conformance checks on a subject and says what happened. Knows neither pytest nor the command line."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any, Literal

from erniecore_conformance.check import Check
from erniecore_conformance.expect import CheckFailed, NotApplicable
from erniecore_conformance.subjects import Subject

Status = Literal["passed", "failed", "skipped", "expected"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check said. ``expected``: it failed and the plugin had announced that, with a reason."""

    check: str
    rule: str
    status: Status
    detail: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def run_check(check: Check, subject: Subject) -> Outcome:
    """The outcome of one check; never raises for what the subject does."""
    plugin = subject.plugin
    start = time.perf_counter()
    if check.needs and check.needs not in plugin.capabilities:
        return Outcome(check.name, check.rule, "skipped", f"needs the capability {str(check.needs)!r}")
    if check.unless and check.unless in plugin.capabilities:
        return Outcome(check.name, check.rule, "skipped", f"not for plugins with the capability {str(check.unless)!r}")
    status, detail = _verdict(check, subject)
    reason = plugin.expected_failures.get(check.name)
    if reason is not None:
        if status == "failed":
            status, detail = "expected", f"{reason} ({detail})"
        else:
            status, detail = "failed", f"was expected to fail ({reason}) but {status}; remove it from expected_failures"
    return Outcome(check.name, check.rule, status, detail, round(time.perf_counter() - start, 3))


def run_checks(subject: Subject, checks: Iterable[Check] | None = None) -> list[Outcome]:
    """Every check of the subject's kind (or those given), in order."""
    from erniecore_conformance.checks import checks_for

    return [run_check(check, subject) for check in (checks_for(subject.kind) if checks is None else checks)]


def _verdict(check: Check, subject: Subject) -> tuple[Status, str]:
    try:
        with redirect_stdout(io.StringIO()):  # what a plugin prints is no part of the report
            check.function(subject)
    except NotApplicable as reason:
        return "skipped", str(reason)
    except CheckFailed as failure:
        return "failed", str(failure)
    except Exception as error:  # whatever a plugin raises is a finding, not a crash of the kit
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""
