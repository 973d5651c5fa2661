"""A finding of a health check: its severity, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about the machine.

    Attributes:
        area: what it belongs to, e.g. ``paddle``. name: within the area, e.g. ``version``.
        level: ``ok``; ``warning``: a run works, but may be slow or limited; ``problem``: a run that needs it will fail.
        message: what was found, one line. remedy: what to do; empty when ok.
    """

    area: str
    name: str
    level: Level
    message: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """The finding as a JSON object."""
        return asdict(self)


def ok(area: str, name: str, message: str) -> Finding:
    """A finding that needs no action."""
    return Finding(area, name, "ok", message)


def warning(area: str, name: str, message: str, remedy: str = "") -> Finding:
    """A finding that stops no run."""
    return Finding(area, name, "warning", message, remedy)


def problem(area: str, name: str, message: str, remedy: str) -> Finding:
    """A finding to be fixed before a run that needs it."""
    return Finding(area, name, "problem", message, remedy)


def summary(findings: Iterable[Finding]) -> dict[str, int]:
    """The number of findings of each level: ``ok``, ``warnings``, ``problems``."""
    levels = [finding.level for finding in findings]
    return {
        "ok": levels.count("ok"),
        "warnings": levels.count("warning"),
        "problems": levels.count("problem"),
    }
