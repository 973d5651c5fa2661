"""The objective of distillation where some samples may have no reply of the teacher in time: their labels alone count.

    L = (1 / N) Σ_t [ a_t alpha T² D(teacher_t, student_t) + (1 - alpha) (-log p(label_t | tokens ≤ t)) ]

a_t is 1 where the teacher has answered, else 0. The teacher is asked once for all samples of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from erniecore_distill.objective import DistillObjective

from erniecore.api.method import IGNORE, Batch
from erniecore_remote_distill.decisions import Decisions
from erniecore_remote_distill.teacher import RemoteTeacher, keyed

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_remote_distill.config import RemoteDistillConfig


class RemoteDistillObjective(DistillObjective):
    """See ``erniecore.api.Objective``.

    Args:
        config: the method's section. policy: the student. remote: the teacher.

    Attributes:
        decisions: of the steps so far, on rank 0 of a run with ``late: skip``.
    """

    def __init__(self, config: RemoteDistillConfig, policy: Any, remote: RemoteTeacher) -> None:
        super().__init__(config, policy, remote)
        self.remote, self._skips = remote, config.late == "skip"
        self.decisions: Decisions | None = None
        self.late_steps = 0

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """The same batches, once the teacher has answered, or it was decided which samples do without it."""
        samples = dict(pair for batch in batches for pair in keyed(batch))
        if not self._skips:
            self.remote.fetch(samples, patient=True)
            return batches
        decided = None if self.decisions is None else self.decisions.of(step)
        told = self.all_gather_object(None if decided is None else sorted(key.hex() for key in decided))[0]
        if told is None:
            late = self.remote.fetch(samples, patient=False)
            parts = self.all_gather_object(sorted(key.hex() for key in late))
            skipped = frozenset(bytes.fromhex(key) for part in parts for key in part)
            if self.decisions is not None:
                self.decisions.add(step, skipped)
        else:
            skipped = frozenset(map(bytes.fromhex, told))
            self.remote.fetch({key: one for key, one in samples.items() if key not in skipped}, patient=True)
        self.remote.skipped = skipped
        if skipped:
            self.late_steps += 1
            self.remote.tell_late(step, [samples[key] for key in skipped if key in samples])
        return batches

    def main_loss(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, dict[str, tuple[Tensor | float, float]]]:
        """As :class:`DistillObjective`; ``kl`` and ``teacher/agreement`` are means over the positions with a reply, and
        ``teacher/answered`` is their share."""
        total, metrics = super().main_loss(hidden, batch)
        if not metrics:
            return total, metrics
        taught, learned = float(self.remote.taught), float((batch.labels != IGNORE).sum())
        metrics |= {name: (metrics[name][0], taught) for name in ("kl", "teacher/agreement")}
        return total, {**metrics, "teacher/answered": (taught, learned)}
