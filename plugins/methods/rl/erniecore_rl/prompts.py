"""Extracts the prompts of a batch, independent of packing; numpy only.

Letters: S sequence, P tokens of a prompt, n tokens of a completion.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from erniecore_preference.encoder import CHOSEN, REJECTED

from erniecore.api.method import IGNORE, Batch, Origin

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Given(NamedTuple):
    """A completion from the data: int64 [n] inputs, the first of which is the prompt's last token, and labels."""

    inputs: Ints
    labels: Ints


@dataclass(frozen=True)
class Prompt:
    """A prompt with its completions from the data.

    Attributes:
        ids: int64 [P]. chosen: the reference answer. rejected: the worse one of a pair, or None.
        media: what its placeholders stand for.
        hint: how many of the last ``ids`` are the first ones of the reference answer.
    """

    ids: Ints
    chosen: Given
    rejected: Given | None
    origin: Origin
    media: tuple[str, ...] = ()
    hint: int = 0

    @property
    def question(self) -> Ints:
        """``ids`` without the hint."""
        return self.ids[: len(self.ids) - self.hint]

    @property
    def reference(self) -> Ints:
        """Ids of the reference answer, its end included."""
        ids: Ints = self.chosen.labels[self.chosen.labels != IGNORE]
        return ids


def prompts_of(batch: Batch) -> Iterator[Prompt]:
    """Every prompt of a batch, by the fields ``sample`` and ``completion`` (see ``encoder.py``); none of a batch that is all
    padding, which a rank without a row gets."""
    if not batch.num_tokens:
        return
    origins, media = iter(batch.origins), iter(batch.media)
    S = batch.input_ids.shape[1]
    for b in range(len(batch.input_ids)):
        real = batch.startend_row_indices[b, 0, :, 0] > np.arange(S)
        starts = np.flatnonzero(batch.fields["sample"][b] * real)
        for start, end in zip(starts, [*starts[1:], int(real.sum())], strict=True):
            yield _prompt(batch, b, slice(int(start), int(end)), next(origins, Origin("", 0)), next(media, ()))


def _prompt(batch: Batch, b: int, part: slice, origin: Origin, media: tuple[str, ...]) -> Prompt:
    ids, labels, side = batch.input_ids[b, part], batch.labels[b, part], batch.fields["completion"][b, part]
    K = int((side == 0).sum())
    chosen, rejected = (Given(ids[side == s], labels[side == s]) for s in (CHOSEN, REJECTED))
    return Prompt(ids[: K + 1], chosen, rejected if len(rejected.inputs) else None, origin, media)


def streams(prompts: Sequence[Prompt], copies: int) -> list[int]:
    """A random stream for each of ``copies`` completions of each prompt, in this order.

    It depends on the prompt's tokens and images (paths and contents) and on how often they occurred before, not on their
    position, so packing, order and micro-batches do not change completions.
    """
    seen: Counter[bytes] = Counter()
    found = []
    for prompt in prompts:
        key = prompt.ids.tobytes() + "\0".join(prompt.media).encode()
        for copy in range(copies):
            digest = hashlib.blake2b(key, digest_size=8, salt=f"{seen[key]}/{copy}".encode()).digest()
            found.append(int.from_bytes(digest, "little") >> 2)
        seen[key] += 1
    return found


def digest_of(keys: Sequence[int]) -> str:
    """A name for prompts with these :func:`streams` of one copy each, in this order: short, and a part of a tensor's name."""
    return hashlib.blake2b(np.array(keys, np.int64).tobytes(), digest_size=8).hexdigest()
