"""What prompts with images add to decoding: their pixels and positions in the pass that reads the prompt, and positions that go
on behind the images afterwards. Sizes, placeholders and pixels come from the chat template, as in training (``MediaReader``).

Letters: b prompts, w columns, S tokens of a prompt.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from erniecore.api import UsageError
from erniecore.api.data import IGNORE, IMAGE_MARKER, Media, MediaReader, Message, Sample
from erniecore.api.training import collate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore.api.model import ChatTemplate
    from erniecore_generation.sampling import Ints

    Inputs: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """Of one prompt.

    Attributes:
        positions: int64 [S, axes] of its tokens. inputs: further inputs of the model by name; those of tokens are [1, S].
    """

    positions: Ints
    inputs: Mapping[str, NDArray[Any]]

    @property
    def shift(self) -> int:
        """What to add to the number of a token behind the prompt for its position."""
        return int(self.positions.max()) + 1 - len(self.positions)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return self.positions.nbytes + sum(values.nbytes for values in self.inputs.values())


def asked(text: str, files: Sequence[str | Path], where: str = "--image") -> Message:
    """A user's message with images: where its text has ``<image>``, else before it.

    Raises ``UsageError`` for another number of markers than of files; the files are not opened."""
    media = tuple(Media(path.name, str(path.parent), f"{where} {file}") for file in files for path in [_real(file)])
    markers = text.count(IMAGE_MARKER)
    if media and markers not in (0, len(media)):
        found, expected = (
            f"{markers} {IMAGE_MARKER}, {len(media)} images",
            f"one {IMAGE_MARKER} for each image, or none",
        )
        raise UsageError("images and markers do not fit each other", where=where, found=found, expected=expected)
    return Message("user", text if markers else IMAGE_MARKER * len(media) + text, media=media)


def _real(file: str | Path) -> Path:
    """Whoever types a path may mean a link."""
    return Path(os.path.realpath(os.path.expanduser(file)))


def media_of(template: ChatTemplate | None, messages: Sequence[Message], ids: Sequence[int]) -> PromptMedia | None:
    """What the images of ``messages`` add to their prompt ``ids``; None without images.

    Raises ``DataError`` for an image that has changed since it was measured."""
    if not any(message.media for message in messages):
        return None
    reader: Any = template
    assert isinstance(reader, MediaReader)
    return prompt_media(template, np.array(ids, np.int64), reader.references(messages, list(ids)))


def prompt_media(template: ChatTemplate | None, ids: Ints, media: tuple[str, ...]) -> PromptMedia | None:
    """What ``media``, as in ``Sample.media``, adds to its prompt, int64 [S]; None for nothing. Raises as :func:`media_of`."""
    if not media:
        return None
    reader: Any = template
    assert isinstance(reader, MediaReader)
    size, array, ends = len(ids), ids, np.full(len(ids), len(ids), np.int32)
    made = Sample(array, np.full(size, IGNORE, np.int64), np.arange(size), ends, media=media)
    batch = reader.complete(collate([[made]], pad_id=0), [[made]])
    return PromptMedia(batch.position_ids[0], batch.inputs)


def check_media(template: ChatTemplate | None, messages: Sequence[Message]) -> None:
    """Raises ``UsageError`` for images where the model reads none."""
    media = [media for message in messages for media in message.media]
    if media and not isinstance(template, MediaReader):
        fix = "ask a model that sees, such as ernie45-vl or paddleocr-vl"
        raise UsageError("this model reads no images", where=media[0].where, found=media[0].source[:80], fix=fix)


def prefill_inputs(media: Sequence[PromptMedia | None], positions: Ints) -> tuple[Ints, Inputs]:
    """Positions [b, w, axes] of prompts that are padded on the left, and the further inputs of all of them together.

    Args:
        media: of each prompt. positions: int64 [b, w] as of texts.
    """
    seen = [found for found in media if found is not None]
    if not seen:
        return positions, {}
    b, w = positions.shape
    places = np.repeat(positions[..., None], seen[0].positions.shape[1], axis=2)
    inputs: Inputs = {}
    for row, found in enumerate(media):
        if found is None:
            continue
        size = len(found.positions)
        places[row, w - size :] = found.positions
        for name, values in found.inputs.items():
            if values.shape[:2] == (1, size):
                inputs.setdefault(name, np.zeros((b, w, *values.shape[2:]), values.dtype))[row, w - size :] = values[0]
            else:
                inputs[name] = np.concatenate([inputs[name], values]) if name in inputs else values
    return places, inputs
