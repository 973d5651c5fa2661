"""One rule of the conformance kit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from erniecore.api import Capability
from erniecore_conformance.subjects import Subject


@dataclass(frozen=True, slots=True)
class Check:
    """One rule.

    Attributes:
        function: takes a :class:`Subject`, raises ``CheckFailed`` or ``NotApplicable``; its docstring is the rule.
        needs: capability without which the check is skipped.
        unless: capability that skips the check.
        process: the check starts a process.
    """

    function: Callable[[Subject], None]
    needs: Capability | None = None
    unless: Capability | None = None
    process: bool = False

    @property
    def name(self) -> str:
        """The check's name, ``<kind>_<property>``."""
        return self.function.__name__.removeprefix("check_")

    @property
    def rule(self) -> str:
        """First line of the docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]
