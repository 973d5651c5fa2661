"""The objective of online distillation. The teacher learns as in pre-training, to the bit; each forward pass of it is also what
the students learn from, once per step:

    L_student = (1 / N) Σ_t [ logits T² KL(P_t | Q_t) + labels (−log Q(label_t)) ] + (attention / M) Σ_m KL(A_m | a_m)

N: loss tokens of the step, M: positions that are no padding. P, Q: next-token distributions of teacher and student at
temperature T; A, a: attention distributions of their last layers (of the student's auxiliary layer, if it has one). No gradient
reaches the teacher. With an assistant, it takes the teacher's place for the students.

Attention, on-the-fly learning, assistant and auxiliary layer: Wang et al., "ERNIE 3.0 Titan" (2021), arXiv:2112.12731. The
divergence of the logits is that of Hinton et al., arXiv:1503.02531, so that a student is a language model without further
training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_distill.chunked import Comparison, Head, WholeVocabulary, compared
from erniecore_pretrain.objective import PretrainObjective

from erniecore.api import ConfigError
from erniecore.api.method import IGNORE, Batch, Features, LossOutput
from erniecore.api.optimizer import ProcessGroup
from erniecore.api.training import load_exactly
from erniecore_online_distill.attention import attention_divergence, attention_log_probs
from erniecore_online_distill.config import ASSISTANT, OnlineDistillConfig
from erniecore_online_distill.students import Student
from erniecore_online_distill.watching import Watched, watched

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor

    Metrics = dict[str, tuple[Tensor | float, float]]


@dataclass(frozen=True, slots=True)
class Passed:
    """What a forward pass is to those who learn from it, without gradients.

    Attributes:
        hidden: [n, H] at the positions with a label. head: of the model. attention: log-probabilities, or None.
    """

    hidden: Tensor
    head: Head
    attention: Tensor | None


class OnlineDistillObjective(PretrainObjective):
    """See ``erniecore.api.Objective``.

    Args:
        config: the method's section. policy: the teacher. students: those who learn, the assistant first.

    Attributes:
        ranks: over which the students' gradients are summed; None: this process is all.
        rate_factor: the students' learning rate is that of the step times this.
    """

    def __init__(self, config: OnlineDistillConfig, policy: Any, students: Sequence[Student]) -> None:
        super().__init__(
            policy, document_mask=config.document_mask, mtp_weight=config.mtp_weight, accuracy=config.accuracy
        )
        self.config, self.students = config, students
        self.ranks: ProcessGroup | None = None
        self.rate_factor = 1.0
        self.comparison = Comparison(temperature=config.temperature)
        self._taught: tuple[Batch, Tensor] | None = None

    # ---- the teacher
    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """The batches as they are; gradients of a step that was not applied are dropped."""
        for student in self.students:
            student.clear_gradients()
        return batches

    def main_loss(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, Metrics]:
        """That of pre-training; keeps what the students learn from."""
        if self.students:
            self._taught = batch, hidden.detach()
        return super().main_loss(hidden, batch)

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """The teacher's loss. Gradients of the students are accumulated as a side effect, where gradients are wanted.

        Metrics: those of pre-training, and of each student ``students/NAME/loss`` (its negative log-likelihood per token),
        ``/kl`` (of the logits, per token), ``/attention`` (per position) and ``/agreement``."""
        if not self.students:
            return super().__call__(batch, totals)
        with self._watched(self.policy) as seen:
            output = super().__call__(batch, totals)
        assert self._taught is not None
        (effective, hidden), self._taught = self._taught, None
        metrics = {**output.metrics, **self._teach(effective, hidden, seen, totals)}
        return replace(output, metrics=metrics)

    def after_step(self, *, step: int, rate: float) -> None:
        """Every student is updated once for each update of the teacher."""
        for student in self.students:
            student.update(rate * self.rate_factor, self.config.max_grad_norm, self.ranks)

    # ---- the students
    def _teach(self, batch: Batch, hidden: Tensor, seen: Watched, totals: Mapping[str, float]) -> Metrics:
        """All students' losses on the batch that the teacher has just read, and their gradients."""
        (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
        teacher = self._passed(self.policy, hidden, seen, where)
        generator = paddle.get_rng_state()  # what a student draws must not change what the teacher draws next
        metrics: Metrics = {}
        for student in self.students:
            with self._watched(student.model, student.auxiliary) as own:
                features = _features(student.model, batch)
            loss, measured = self._loss(student, features, own, batch, teacher, where, totals)
            if not loss.stop_gradient:
                loss.backward()
            metrics |= {f"students/{student.name}/{key}": value for key, value in measured.items()}
            if student.name == ASSISTANT:
                teacher = self._passed(student.model, features.hidden.detach(), own, where)
        paddle.set_rng_state(generator)
        return metrics

    def _watched(self, model: Any, auxiliary: Any = None) -> AbstractContextManager[Watched]:
        return watched(model, auxiliary) if self.config.attention else nullcontext(Watched())

    def _passed(self, model: Any, hidden: Tensor, seen: Watched, where: NDArray[np.int64]) -> Passed:
        with paddle.no_grad():
            rows = hidden.reshape([-1, hidden.shape[-1]]).gather(paddle.to_tensor(where))
            attention = attention_log_probs(_seen(seen.last), self.config.heads) if self.config.attention else None
        return Passed(rows, Head(*model.head()), attention)

    def _loss(
        self,
        student: Student,
        features: Features,
        own: Watched,
        batch: Batch,
        teacher: Passed,
        where: NDArray[np.int64],
        totals: Mapping[str, float],
    ) -> tuple[Tensor, Metrics]:
        c, count = self.config, float(len(where))
        hidden = features.hidden.reshape([-1, features.hidden.shape[-1]]).gather(paddle.to_tensor(where))
        nll, divergence, agreed = compared(
            hidden,
            Head(*student.model.head()),
            paddle.to_tensor(batch.labels.reshape(-1)[where]),
            WholeVocabulary(teacher.hidden, teacher.head),
            self.comparison,
            self.loss_chunk,
        )
        weighted = c.logits * c.temperature**2 * divergence + c.labels * nll
        loss = weighted / (totals["tokens"] or 1.0)
        metrics: Metrics = {
            "loss": (nll.detach(), count),
            "kl": (divergence.detach(), count),
            "agreement": (agreed, count),
        }
        if teacher.attention is not None:
            inputs = _seen(own.last if student.auxiliary is None else own.auxiliary)
            theirs = attention_log_probs(inputs, c.heads)
            if theirs.shape != teacher.attention.shape:
                heads = f"{theirs.shape[1]} heads, and learns from {teacher.attention.shape[1]}"
                raise ConfigError.at("method.heads", f"{student.name} has {heads}: set method.heads=average")
            apart = attention_divergence(teacher.attention, theirs, _real(batch))
            loss = loss + c.attention * apart / (totals["seen"] or 1.0)
            metrics["attention"] = apart.detach(), float(batch.num_tokens)
        share = batch.num_tokens / (totals["seen"] or 1.0)  # router losses are means over the micro-batch
        for value in features.auxiliary.values():
            loss = loss + value * share
        return loss, metrics

    # ---- checkpoints
    def state_tensors(self) -> Mapping[str, Tensor]:
        """Weights and optimizer state of all students."""
        return {name: tensor for student in self.students for name, tensor in student.state_tensors().items()}

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raises ``CheckpointError`` where the checkpoint was made with other students."""
        load_exactly(self.state_tensors(), arrays, "students")
        for student in self.students:
            student.restored()


def _features(model: Any, batch: Batch) -> Features:
    """What a student computes of the batch that the teacher has read."""
    features: Features = model.features(
        paddle.to_tensor(batch.input_ids),
        position_ids=paddle.to_tensor(batch.position_ids),
        startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
    )
    return features


def _seen(inputs: Any) -> Any:
    if inputs is None:
        raise ConfigError.at(
            "method.attention",
            "the last layer of a model here does not attend by ops.attention; set method.attention=0",
        )
    return inputs


def _real(batch: Batch) -> NDArray[np.bool_]:
    """bool [B, S], false at padding, whose columns end at themselves."""
    found: NDArray[np.bool_] = batch.startend_row_indices[:, 0, :, 0] > np.arange(batch.input_ids.shape[1])
    return found
