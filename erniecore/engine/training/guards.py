"""What must never pass silently: losses and gradients that are not finite, and token ids that the model lacks.

A step with a non-finite loss or gradient, or with a gradient that is far above the usual one, is skipped: weights and
moments stay as they were, the step counts and its samples are named in a warning. After too many in a row the run goes
back to a checkpoint (``recover.py``) or stops.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from erniecore.codes import ID_OUT_OF_RANGE
from erniecore.errors import DataError, NumericsError
from erniecore.types.records import Origin
from erniecore.types.samples import IGNORE, Batch

if TYPE_CHECKING:
    from erniecore.data.dataset import TokenizedDataset
    from erniecore.types.model import Tensor


#: gradient norms whose median is what a spike is measured against
SPIKE_WINDOW = 64


class BadStep(NamedTuple):
    """A step that must not update the weights.

    Attributes:
        where, found: the first tensor that is wrong, and its value. skipped: consecutive bad steps. samples: ``file:line``.
    """

    where: str
    found: str
    skipped: int
    samples: tuple[str, ...]


class StepGuard:
    """Decides whether a step may update the weights: it is finite and, where ``spike_factor`` is set, its gradient is
    no such multiple of the usual one.

    Attributes:
        skips: consecutive skipped steps so far. norms: the last gradient norms that were accepted; both are part of the
            checkpoint.
        first_bad: the step at which ``skips`` began; 0 without any.
    """

    def __init__(self, max_skips: int, *, spike_factor: float = 0.0) -> None:
        self.max_skips, self.spike_factor, self.skips, self.first_bad = max_skips, spike_factor, 0, 0
        self.norms: deque[float] = deque(maxlen=SPIKE_WINDOW)

    def state(self) -> dict[str, Any]:
        """The counters and norms to save in ``state.json``."""
        return {"skips": self.skips, "first_bad": self.first_bad, "norms": list(self.norms)}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.skips, self.first_bad = int(saved["skips"]), int(saved["first_bad"])
        self.norms.clear()
        self.norms.extend(saved["norms"])

    def judge(
        self,
        step: int,
        loss: float,
        grad_norm: float,
        batches: Sequence[Batch],
        gradients: Iterable[tuple[str, Tensor]],
    ) -> BadStep | None:
        """None for a good step. Else what is wrong with it; after ``max_skips`` in a row it is raised.

        Raises:
            NumericsError: where: the first tensor that is not finite; found: its value.
        """
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        if finite and not self._is_spike(grad_norm):
            self.skips, self.first_bad = 0, 0
            self.norms.append(grad_norm)
            return None
        self.skips += 1
        self.first_bad = self.first_bad or step
        where, found = self._describe(finite, loss, grad_norm, gradients)
        origins = [f"{o.file}:{o.line}" for batch in batches for o in batch.origins]
        if self.skips > self.max_skips:
            raise NumericsError(
                f"step {step}: {'not finite' if not finite else 'a spike'}, {self.skips} in a row; weights were not updated "
                "with it",
                where=where,
                found=f"{found}; samples {', '.join(origins[:8])}",
                fix="lower train.learning_rate or train.max_grad_norm, or look at these samples",
            )
        return BadStep(where, found, self.skips, tuple(origins[:64]))

    def _is_spike(self, grad_norm: float) -> bool:
        """Never before the window is full: a run begins with large gradients."""
        full = len(self.norms) == SPIKE_WINDOW
        return bool(self.spike_factor) and full and grad_norm > self.spike_factor * median(self.norms)

    def _describe(
        self, finite: bool, loss: float, grad_norm: float, gradients: Iterable[tuple[str, Tensor]]
    ) -> tuple[str, str]:
        if finite:
            usual = median(self.norms)
            return "gradient norm", f"{grad_norm:.4g}, more than {self.spike_factor:g} times the usual {usual:.4g}"
        if not math.isfinite(loss):
            return "loss", f"{loss}"
        return _first_not_finite(gradients), f"gradient norm {grad_norm}"


def _first_not_finite(gradients: Iterable[tuple[str, Tensor]]) -> str:
    for name, gradient in gradients:
        if not bool(gradient.astype("float32").isfinite().all()):
            return name
    return "sum of squared gradients"


def clip_scale(grad_norm: float, max_norm: float) -> float:
    """Factor that brings the gradients to ``max_norm``: min(1, max_norm / norm); 1 when ``max_norm`` is 0.

    Pascanu, Mikolov & Bengio 2013.
    """
    if max_norm <= 0 or grad_norm <= max_norm:
        return 1.0
    return max_norm / grad_norm


def check_token_ids(batch: Batch, vocab_size: int) -> None:
    """Refuse ids outside of the model's vocabulary, which would read foreign memory or stop deep inside a kernel.

    Raises:
        DataError: with the first such id and where the samples of the batch came from.
    """
    for what, ids in (("token", batch.input_ids), ("label", batch.labels)):
        lowest, highest = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
        if highest >= vocab_size or (lowest < 0 and (what == "token" or _bad_label(ids))):
            bad = highest if highest >= vocab_size else lowest
            raise _foreign_id(what, bad, vocab_size, batch.origins)


def check_dataset(dataset: TokenizedDataset, vocab_size: int) -> None:
    """:func:`check_token_ids` for all samples at once, before anything is trained."""
    found = dataset.foreign_id(vocab_size)
    if found is not None:
        what, value, origin = found
        raise _foreign_id(what, value, vocab_size, [origin])


def _bad_label(labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bool:
    return bool(((labels < 0) & (labels != IGNORE)).any())


def _foreign_id(what: str, value: int, vocab_size: int, origins: Sequence[Origin]) -> DataError:
    return DataError(
        f"a {what} id is outside of the model's vocabulary",
        where=", ".join(f"{o.file}:{o.line}" for o in origins[:4]),
        found=str(value),
        expected=f"ids below {vocab_size} (vocab_size of the model)",
        fix="use the tokenizer that belongs to this model",
        code=ID_OUT_OF_RANGE,
    )
