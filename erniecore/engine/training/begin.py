"""What an objective does once before the first step of a session, over all samples. Not part of any step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from erniecore.data.collate import collate
from erniecore.data.loader import DataPlan
from erniecore.errors import ConfigError, Preempted
from erniecore.types import Batch

if TYPE_CHECKING:
    from erniecore.engine.training.session import Run


def begin(run: Run) -> None:
    """Call the objective's ``begin``; what it returns becomes a ``begin`` event."""
    started = time.perf_counter()
    facts = run.objective.begin(every_sample(run), step=run.step, out=run.out)
    if facts:
        run.emit("begin", step=run.step, **facts, seconds=time.perf_counter() - started)


def every_sample(run: Run) -> Iterator[Batch]:
    """Every training and held-out sample once, on every rank, in batches as large as those of an evaluation.

    Raises:
        ConfigError: data that is no list of samples. Preempted: asked to stop; there is nothing to save.
    """
    size = run.settings.eval.batch_size or run.settings.train.batch_size
    for plan in (run.feed.train, run.feed.held):
        if plan is None:
            continue
        if not isinstance(plan, DataPlan):
            raise ConfigError.at("data.train", "this method wants to see every sample once, which token files have not")
        for start in range(0, len(plan.store), size):
            if reason := run.stop_reason():  # of any rank: the passes of a model may need all of them
                raise Preempted(f"stopped by {reason} before step {run.step + 1}", fix="run it again")
            part = range(start, min(start + size, len(plan.store)))
            yield collate([[plan.store[i]] for i in part], pad_id=plan.pad_id)
