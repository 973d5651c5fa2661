"""One mutant: a subject with one thing wrong, and the checks that must notice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from erniecore.api import Plugin
from erniecore_conformance.check import Check
from erniecore_conformance.checks import CHECKS, checks_for
from erniecore_conformance.runner import Outcome, run_checks
from erniecore_conformance.subjects import Subject


@dataclass(frozen=True)
class Mutant:
    """A subject that must be rejected.

    Attributes:
        check: the check that it is for.
        subject: what it is.
        also: further checks that cannot but fail with it.
    """

    check: str
    subject: Subject
    also: tuple[str, ...] = ()

    @property
    def rejected_by(self) -> frozenset[str]:
        """All checks that must fail, and no others."""
        return frozenset({self.check, *self.also})

    def outcomes(self, checks: Iterable[Check] | None = None) -> list[Outcome]:
        """What ``checks`` say, by default all of :meth:`concerned`."""
        return run_checks(self.subject, self.concerned() if checks is None else checks)

    def concerned(self) -> tuple[Check, ...]:
        """The checks that concern it. A process takes half a second, so checks for all kinds that start one are left to
        the mutants that are for them."""
        checks = checks_for(self.subject.kind)
        if self.check.startswith("every_"):
            checks = CHECKS["every"]
        if not next(check.process for check in checks if check.name == self.check):
            checks = tuple(check for check in checks if not check.process)
        return checks

    @property
    def title(self) -> str:
        """What is wrong, for test ids."""
        return f"{self.check}-{type(self.subject.plugin).__name__}"


def mutant(check: str, plugin: type[Plugin], *, also: tuple[str, ...] = (), **facts: Any) -> Mutant:
    """A mutant of a plugin class; ``facts`` replace what its entry point says."""
    base = {
        "kind": plugin.kind,
        "name": getattr(plugin, "name", ""),
        "target": f"{plugin.__module__}:{plugin.__name__}()",
    }
    return Mutant(check, Subject(plugin(), **{**base, **facts}), also)
