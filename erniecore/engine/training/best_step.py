"""The best evaluation of a run so far (``eval.best``). It is part of what a checkpoint holds, so a
run that continues has seen the same evaluations; retention keeps the checkpoint of the best step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from erniecore.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from erniecore.config.core import EvalSection


@dataclass
class Best:
    """The best evaluation so far.

    Attributes:
        step: after which it was; 0: there was none. value: of the metric ``eval.best``.
        stale: evaluations in a row since then that were no better. evaluated: step of the last evaluation.
    """

    step: int = 0
    value: float = 0.0
    stale: int = 0
    evaluated: int = 0

    def observe(
        self, step: int, means: Mapping[str, float], section: EvalSection, lower: frozenset[str] = frozenset()
    ) -> bool:
        """Take an evaluation into account, once; whether it is the best so far.

        Args:
            means: metrics of the evaluation. A value that is not finite is never better.
            lower: those of which a lower value is better, where neither the settings nor the name says so.
        Raises:
            ConfigError: ``eval.best`` is none of them.
        """
        if step <= self.evaluated:
            return False
        if section.best not in means:
            hint = did_you_mean(section.best, means, "the evaluation has " + ", ".join(sorted(means)))
            raise ConfigError.at("eval.best", f"the evaluation has no metric {section.best!r}; {hint}")
        value, self.evaluated = means[section.best], step
        greater = section.greater and (section.best not in lower or section.greater_is_better is not None)
        gain = value - self.value if greater else self.value - value
        better = math.isfinite(value) and (self.step == 0 or gain > section.min_change)
        self.stale = 0 if better else self.stale + 1
        if better:
            self.step, self.value = step, value
        return better

    def why_enough(self, section: EvalSection) -> str:
        """Why training ends here by ``eval.patience``; empty: it goes on."""
        if not section.patience or self.stale < section.patience:
            return ""
        return f"{self.stale} evaluations without a better {section.best} than {self.value:.6g} (step {self.step})"
