"""Which metrics of a run besides the loss deserve a curve of their own, and in which order. Names only; ``chart.py`` lays
out their curves.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from erniecore_runs.record import RunRecord, finite

from erniecore.api.events import COUNTS
from erniecore_report.summary import MEMORY_KEYS

#: keys of ``step`` and ``eval`` events that are no metrics, or have charts of their own
_SHOWN_ELSEWHERE = COUNTS | {"loss", "lr", "grad_norm", "tokens_per_s", *MEMORY_KEYS}
#: what a reader looks for first; the rest follows by name
_FIRST = (
    "accuracy", "*accuracies", "*margins", "*exact*", "generate/*", "lm-eval/*", "reward", "reward/*", "*rewards", "rewards/*",
    "perplexity",
)  # fmt: skip
#: as many panels on the page, and in the image next to the loss
ON_PAGE, IN_IMAGE = 24, 3


def panels(record: RunRecord) -> list[str]:
    """Names of the metrics that have a curve, over steps or evaluations, the telling ones first."""
    found: dict[str, None] = {}
    for event in (*record.steps.values(), *record.evals):
        found.update(dict.fromkeys(event))
    names = [n for n in found if n not in _SHOWN_ELSEWHERE and (_drawn(record, n))]
    return sorted(names, key=lambda name: (_rank(name), name))


def _drawn(record: RunRecord, name: str) -> bool:
    return max(len(finite(record.series(name))), len(finite(record.eval_series(name)))) > 1


def _rank(name: str) -> int:
    return next((i for i, pattern in enumerate(_FIRST) if fnmatchcase(name, pattern)), len(_FIRST))
