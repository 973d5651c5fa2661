"""Teachers: an online teacher runs a frozen model for every batch; a cached teacher reads its top-k log-probabilities from disk.
The divergences are in ``chunked.py``, the files in ``cache.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import paddle  # noqa: TID253

from erniecore.api import ConfigError
from erniecore.api.data import MediaReader
from erniecore.api.method import IGNORE, Batch, Sample
from erniecore_distill.cache import Cache, TopLogProbs, key_of
from erniecore_distill.chunked import Head, Teaching, TopTokens, WholeVocabulary, chunks, top_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor


_OTHER_READING = (
    "rows have images, which this teacher does not read as the student does: name a teacher of the student's family, or "
    "leave the images out"
)


class Teacher(Protocol):
    """A source of target distributions."""

    def teaching(self, batch: Batch, chunk: int) -> Teaching:
        """The distributions at the loss tokens of ``batch``, in order."""
        ...


class OnlineTeacher:
    """Runs the teacher model on every batch, with the student's packing.

    Args:
        model: a frozen ``CausalLM``. top_k: 0: the whole vocabulary. temperature: of the divergence.
        images: whether it gets the images of a batch, made for the student.
    """

    def __init__(self, model: Any, *, top_k: int = 0, temperature: float = 1.0, images: bool = True) -> None:
        self.model, self.top_k, self.temperature, self.images = model, top_k, temperature, images
        model.eval()

    def teaching(self, batch: Batch, chunk: int) -> Teaching:
        if batch.inputs and not self.images:
            raise ConfigError.at("method.teacher", _OTHER_READING)
        (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
        with paddle.no_grad():
            hidden_BSJ = self.model.features(
                paddle.to_tensor(batch.input_ids),
                position_ids=paddle.to_tensor(batch.position_ids),
                startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
                **{name: paddle.to_tensor(values) for name, values in batch.inputs.items()},
            ).hidden
            hidden_nJ = hidden_BSJ.reshape([-1, hidden_BSJ.shape[-1]]).gather(paddle.to_tensor(where))
            whole = WholeVocabulary(hidden_nJ, Head(*self.model.head()))
            return self._most_likely(whole, chunk) if self.top_k else whole

    def _most_likely(self, whole: WholeVocabulary, chunk: int) -> TopTokens:
        count = whole.hidden.shape[0]
        parts = [
            top_tokens(whole.head.logits(whole.hidden[rows]), self.top_k, self.temperature)
            for rows in chunks(count, chunk)
        ]
        ids, log_p, rest = (paddle.concat([getattr(part, name) for part in parts]) for name in ("ids", "log_p", "rest"))
        return TopTokens(ids, log_p, rest)


class CachedTeacher:
    """Reads cached values and runs the teacher for samples that have none; the first epoch of the first run fills the cache.

    The teacher gets one sample at a time, so that its values depend only on the sample and not on packing.

    Args:
        cache: for this teacher, ``top_k`` and temperature. open_model: opens the model and says whether it gets images; called
            when it is first needed. reader: makes the images of one sample; None: batches have none.
    """

    def __init__(
        self,
        cache: Cache,
        open_model: Callable[[], tuple[Any, bool]],
        *,
        top_k: int,
        temperature: float,
        reader: MediaReader | None = None,
    ) -> None:
        self.cache, self.open_model, self.reader = cache, open_model, reader
        self.top_k, self.temperature = top_k, temperature
        self._online: OnlineTeacher | None = None

    def teaching(self, batch: Batch, chunk: int) -> Teaching:
        found = [self._top_log_probs(sample, chunk) for sample in samples_of(batch)]
        ids, log_p, rest = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return TopTokens(
            paddle.to_tensor(ids.astype(np.int64)), paddle.to_tensor(log_p), paddle.to_tensor(rest[:, None])
        )

    def _top_log_probs(self, sample: Batch, chunk: int) -> TopLogProbs:
        (media,) = sample.media
        key = key_of(sample.input_ids, sample.labels != IGNORE, media)
        known = self.cache.get(key)
        if known is None:
            known = self._ask(self._seen(sample) if media else sample, chunk)
            self.cache.add(key, known)
        return known

    def _ask(self, sample: Batch, chunk: int) -> TopLogProbs:
        if self._online is None:
            model, images = self.open_model()
            self._online = OnlineTeacher(model, top_k=self.top_k, temperature=self.temperature, images=images)
        top: Any = self._online.teaching(sample, chunk)
        return TopLogProbs(_array(top.ids, np.int32), _array(top.log_p), _array(top.rest)[:, 0])

    def _seen(self, alone: Batch) -> Batch:
        """With the images of its sample, made anew: those of the batch stand beside others."""
        assert self.reader is not None
        size = alone.num_tokens
        ends = alone.startend_row_indices.reshape(-1)
        sample = Sample(alone.input_ids[0], alone.labels[0], np.arange(size), ends, media=alone.media[0])
        return self.reader.complete(alone, [[sample]])


def _array(tensor: Tensor, dtype: Any = np.float32) -> NDArray[Any]:
    return np.asarray(tensor.numpy()).astype(dtype)


def samples_of(batch: Batch) -> Iterator[Batch]:
    """The samples of a batch with loss tokens, each as a batch of its own, in the order of their positions; without images."""
    ends, media = batch.startend_row_indices[:, 0, :, 0], iter(batch.media)
    for row in range(len(ends)):
        start = 0
        while start < ends.shape[1]:
            end = max(int(ends[row, start]), start + 1)
            columns = (slice(row, row + 1), slice(start, end))
            own = next(media, ()) if ends[row, start] > start else ()  # padding is no sample
            if (batch.labels[columns] != IGNORE).any():
                yield _alone(batch, columns, own)
            start = end


def _alone(batch: Batch, columns: tuple[slice, slice], media: tuple[str, ...]) -> Batch:
    size = columns[1].stop - columns[1].start
    places = np.arange(size)[None] if media else batch.position_ids[columns]
    return Batch(
        input_ids=batch.input_ids[columns],
        labels=batch.labels[columns],
        position_ids=places if places.ndim == 2 else places[..., 0],
        startend_row_indices=np.full((1, 1, size, 1), size, np.int32),
        fields={},
        num_tokens=size,
        num_samples=1,
        media=(media,),
    )
