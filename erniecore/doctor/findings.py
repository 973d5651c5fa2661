"""One thing that the doctor found: how bad it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "remark", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about the machine.

    Attributes:
        area: what it belongs to, e.g. ``paddle``. name: within the area, e.g. ``version``.
        level: ``ok``; ``remark``: nothing stops, but read it; ``problem``: a run that needs it will fail.
        message: what was found, one line. remedy: what to do; empty when ok.
    """

    area: str
    name: str
    level: Level
    message: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def ok(area: str, name: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(area, name, "ok", message)


def remark(area: str, name: str, message: str, remedy: str = "") -> Finding:
    """Worth knowing."""
    return Finding(area, name, "remark", message, remedy)


def problem(area: str, name: str, message: str, remedy: str) -> Finding:
    """To be repaired before a run that needs it."""
    return Finding(area, name, "problem", message, remedy)


def summary(findings: Iterable[Finding]) -> dict[str, int]:
    """How many of each level: ``ok``, ``remarks``, ``problems``."""
    levels = [finding.level for finding in findings]
    return {
        "ok": levels.count("ok"),
        "remarks": levels.count("remark"),
        "problems": levels.count("problem"),
    }
