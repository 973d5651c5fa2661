"""What images cost besides tokens: patches, which the vision tower reads. A bound per row, and the count of every sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from erniecore import codes
from erniecore.errors import ConfigError, RowError
from erniecore.types.records import Record, messages_of
from erniecore.types.samples import Encoder, MediaReader, Sample, media_reader

if TYPE_CHECKING:
    from erniecore.data.dataset import TokenizedDataset
    from erniecore.types.samples import Array


class BoundedEncoder:
    """``encoder``, for samples of at most so many patches. Raises ``ConfigError`` for one that reads no images."""

    def __init__(self, encoder: Encoder, max_patches: int) -> None:
        reader = media_reader(encoder)
        if reader is None:
            raise ConfigError.at("data.max_patches", "the method, or the model, reads no images: set it to 0")
        self.encoder, self.max_patches, self.media, self.accepts = encoder, max_patches, reader, encoder.accepts

    def encode(self, record: Record) -> Sequence[Sample]:
        """Raises ``RowError`` also for a row with more patches."""
        samples = self.encoder.encode(record)
        most = max((sum(map(self.media.patches, sample.media)) for sample in samples), default=0)
        if most > self.max_patches:
            raise RowError(
                "the images of the row have too many patches",
                code=codes.BAD_MEDIA,
                where=next(m.media[0].where for m in messages_of(record) if m.media),
                found=f"{most} patches",
                expected=f"at most {self.max_patches} (data.max_patches)",
                fix="raise data.max_patches, let the model see smaller images, or split the row",
            )
        return samples


def patches_of(dataset: TokenizedDataset, media: MediaReader | None) -> Array | None:
    """Patches of each sample, int64 [N]; ``None`` where no sample has images."""
    if media is None:
        return None
    counts = np.zeros(len(dataset), np.int64)
    for index, texts in dataset.media_items():
        counts[index] = sum(map(media.patches, texts))
    return counts if counts.any() else None
