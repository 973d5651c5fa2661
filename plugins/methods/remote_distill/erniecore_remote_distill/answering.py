"""The teacher's model: the most likely tokens of the learned positions of a question, one sample at a time, so that a reply
depends on nothing else. Imports paddle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from erniecore_distill.cache import TopLogProbs
from erniecore_distill.teachers import OnlineTeacher

from erniecore.api.method import IGNORE, Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore_remote_distill.messages import Question

#: positions of which logits are made at a time
_CHUNK = 1024


class Answering:
    """Replies questions with a frozen ``CausalLM``."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, question: Question) -> TopLogProbs:
        asked = question.asked
        teacher = OnlineTeacher(self._model, top_k=asked.top_k, temperature=asked.temperature)
        found = []
        for ids, learned in question.samples:
            top: Any = teacher.teaching(_batch(ids, learned), _CHUNK)
            found.append([np.asarray(part.numpy(), np.float64) for part in (top.ids, top.log_p, top.rest)])
        ids, log_p, rest = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return TopLogProbs(ids.astype(np.int32), log_p.astype(np.float32), rest[:, 0].astype(np.float32))


def _batch(ids: NDArray[np.int64], learned: NDArray[np.bool_]) -> Batch:
    size = len(ids)
    return Batch(
        input_ids=ids[None],
        labels=np.where(learned, 0, IGNORE)[None],
        position_ids=np.arange(size)[None],
        startend_row_indices=np.full((1, 1, size, 1), size, np.int32),
        fields={},
        num_tokens=size,
        num_samples=1,
    )
