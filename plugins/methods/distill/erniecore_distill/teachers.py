"""Teachers: a frozen model that is asked for every batch, or one whose likeliest tokens are kept on disk. How answers are
compared is ``chunked.py``; the files are ``cache.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import paddle  # noqa: TID253

from erniecore.api.method import IGNORE, Batch
from erniecore_distill.cache import Answers, Cache, key_of
from erniecore_distill.chunked import Head, Teaching, TopTokens, WholeVocabulary, chunks, top_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor


class Teacher(Protocol):
    """What the objective asks."""

    def teaching(self, batch: Batch, chunk: int) -> Teaching:
        """What it says about the learned positions of ``batch``, in their order."""
        ...


class AskedTeacher:
    """Asks the model for every batch, in the student's own rows.

    Args:
        model: a frozen ``CausalLM``. top_k: 0: the whole vocabulary. temperature: of the comparison.
    """

    def __init__(self, model: Any, *, top_k: int = 0, temperature: float = 1.0) -> None:
        self.model, self.top_k, self.temperature = model, top_k, temperature
        model.eval()

    def teaching(self, batch: Batch, chunk: int) -> Teaching:
        """See :class:`Teacher`."""
        (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
        with paddle.no_grad():
            hidden_BSJ = self.model.features(
                paddle.to_tensor(batch.input_ids),
                position_ids=paddle.to_tensor(batch.position_ids),
                startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
            ).hidden
            hidden_nJ = hidden_BSJ.reshape([-1, hidden_BSJ.shape[-1]]).gather(paddle.to_tensor(where))
            whole = WholeVocabulary(hidden_nJ, Head(*self.model.head()))
            return self._likeliest(whole, chunk) if self.top_k else whole

    def _likeliest(self, whole: WholeVocabulary, chunk: int) -> TopTokens:
        count = whole.hidden.shape[0]
        parts = [
            top_tokens(whole.head.logits(whole.hidden[rows]), self.top_k, self.temperature)
            for rows in chunks(count, chunk)
        ]
        ids, log_p, rest = (paddle.concat([getattr(part, name) for part in parts]) for name in ("ids", "log_p", "rest"))
        return TopTokens(ids, log_p, rest)


class KeptTeacher:
    """Looks answers up, and asks the model where there are none yet: the first epoch of the first run fills the cache.

    A sample is asked about alone in its row, so that what is kept depends on the sample and the teacher only, not on
    what it was packed with.

    Args:
        cache: of this teacher, ``top_k`` and temperature. open_model: gives the model; called when it is first needed.
    """

    def __init__(self, cache: Cache, open_model: Callable[[], Any], *, top_k: int, temperature: float) -> None:
        self.cache, self.open_model = cache, open_model
        self.top_k, self.temperature = top_k, temperature
        self._asked: AskedTeacher | None = None

    def teaching(self, batch: Batch, chunk: int) -> Teaching:
        """See :class:`Teacher`."""
        found = [self._answers(sample, chunk) for sample in samples_of(batch)]
        ids, log_p, rest = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return TopTokens(
            paddle.to_tensor(ids.astype(np.int64)), paddle.to_tensor(log_p), paddle.to_tensor(rest[:, None])
        )

    def _answers(self, sample: Batch, chunk: int) -> Answers:
        key = key_of(sample.input_ids, sample.labels != IGNORE)
        known = self.cache.get(key)
        if known is None:
            known = self._ask(sample, chunk)
            self.cache.add(key, known)
        return known

    def _ask(self, sample: Batch, chunk: int) -> Answers:
        if self._asked is None:
            self._asked = AskedTeacher(self.open_model(), top_k=self.top_k, temperature=self.temperature)
        top: Any = self._asked.teaching(sample, chunk)
        return Answers(_array(top.ids, np.int32), _array(top.log_p), _array(top.rest)[:, 0])


def _array(tensor: Tensor, dtype: Any = np.float32) -> NDArray[Any]:
    return np.asarray(tensor.numpy()).astype(dtype)


def samples_of(batch: Batch) -> Iterator[Batch]:
    """The samples of a batch that are learned from, each in a row of its own, in the order of their positions.

    A sample's columns end where it ends; a column of padding ends at itself.
    """
    ends = batch.startend_row_indices[:, 0, :, 0]
    for row in range(len(ends)):
        start = 0
        while start < ends.shape[1]:
            end = max(int(ends[row, start]), start + 1)
            columns = (slice(row, row + 1), slice(start, end))
            if (batch.labels[columns] != IGNORE).any():
                yield _alone(batch, columns)
            start = end


def _alone(batch: Batch, columns: tuple[slice, slice]) -> Batch:
    size = columns[1].stop - columns[1].start
    return Batch(
        input_ids=batch.input_ids[columns],
        labels=batch.labels[columns],
        position_ids=batch.position_ids[columns],
        startend_row_indices=np.full((1, 1, size, 1), size, np.int32),
        fields={},
        num_tokens=size,
        num_samples=1,
    )
