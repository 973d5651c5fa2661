"""What prompts with images add to decoding: their pixels and positions in the pass that reads the prompt, and positions that go
on behind the images afterwards. Sizes, placeholders and pixels come from the chat template, as in training (``MediaReader``).

Letters: b prompts, w columns, S tokens of a prompt.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from erniecore.api import UsageError
from erniecore.api.corpus import collate
from erniecore.api.data import IGNORE, MARKERS, Media, MediaReader, Message, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore.api.model import ChatTemplate
    from erniecore_generation.sampling import Ints

    Inputs: TypeAlias = dict[str, NDArray[Any]]

#: images of a prompt that are decoded at the same time
_THREADS = 4


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """An image or a video of a prompt: its placeholders are the tokens from ``start`` to ``end``. ``inputs``: what the model gets
    for it by name; that of the next one follows along the first axis."""

    start: int
    end: int
    inputs: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """Of one prompt.

    Attributes:
        positions: int64 [S, axes] of its tokens. inputs: further inputs of the model with a value for each token, by name,
            [1, S, ...]. spans: its images and videos, in their order.
    """

    positions: Ints
    inputs: Mapping[str, NDArray[Any]]
    spans: tuple[MediaSpan, ...]

    @property
    def shift(self) -> int:
        """What to add to the number of a token behind the prompt for its position."""
        return int(self.positions.max()) + 1 - len(self.positions)

    @property
    def arrays(self) -> Iterator[NDArray[Any]]:
        """All of them, in one order."""
        yield self.positions
        for inputs in (self.inputs, *(span.inputs for span in self.spans)):
            yield from inputs.values()

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(values.nbytes for values in self.arrays)

    def boundary(self, start: int, end: int) -> int:
        """Where a chunk that begins at ``start`` ends, which should end at ``end``: before an image that this would cut, or
        behind one that begins the chunk."""
        for span in self.spans:
            if span.start < end < span.end:
                return span.start if span.start > start else span.end
        return end

    def chunk_ends(self, chunk: int) -> Iterator[int]:
        """Where the chunks of the prompt end that also any longer prompt with this beginning has, ``chunk`` tokens at most but
        for those of images."""
        start = 0
        while (end := self.boundary(start, (start // chunk + 1) * chunk)) <= len(self.positions):
            yield end
            start = end

    def digest(self, start: int, end: int) -> bytes:
        """Hash of what the model gets for the images between ``start`` and ``end``, which cut none."""
        hashed = blake2b(digest_size=16)
        for span in self.spans:
            if start <= span.start < end:
                for name, values in sorted(span.inputs.items()):
                    hashed.update(f"{name} {values.dtype} {values.shape} ".encode())
                    hashed.update(np.ascontiguousarray(values).data)
        return hashed.digest()

    def part(self, start: int, end: int) -> tuple[Ints, Inputs]:
        """(positions [n, axes], inputs of the model by name) of the tokens from ``start`` to ``end``, which cut no image."""
        inputs = {name: values[:, start:end] for name, values in self.inputs.items()}
        return self.positions[start:end], _appended(
            inputs, [span.inputs for span in self.spans if start <= span.start < end]
        )


@dataclass(frozen=True, slots=True)
class MediaPart:
    """The tokens from ``start`` to ``end`` of a prompt, with one image or video of it: ``media``, as in ``Sample.media``, whose
    placeholders are ``span``. What is read at a time."""

    start: int
    end: int
    span: tuple[int, int]
    media: str


def _appended(inputs: Inputs, more: Iterable[Mapping[str, NDArray[Any]]]) -> Inputs:
    """``inputs`` with those of images, which follow each other."""
    found: dict[str, list[NDArray[Any]]] = {}
    for each in more:
        for name, values in each.items():
            found.setdefault(name, []).append(values)
    return inputs | {name: np.concatenate(values) for name, values in found.items()}


def asked(text: str, images: Sequence[str | Path], videos: Sequence[str | Path] = (), *, prefix: str = "--") -> Message:
    """A user's message with images and videos: where its text has ``<image>`` and ``<video>``, else before it. Errors name
    ``prefix`` with the kind as what gave the file.

    Raises ``UsageError`` for another number of markers than of files; the files are not opened."""
    given = [_typed("image", images, prefix), _typed("video", videos, prefix)]
    shown = {media[0].kind: media for media in given if media}
    before = ""
    for kind, media in shown.items():
        marker, count = MARKERS[kind], text.count(MARKERS[kind])
        if count not in (0, len(media)):
            found, expected = f"{count} {marker}, {len(media)} {kind}s", f"one {marker} for each {kind}, or none"
            message = f"{kind}s and markers do not fit each other"
            raise UsageError(message, where=prefix + kind, found=found, expected=expected)
        before += "" if count else marker * len(media)
    text = before + text
    left = {MARKERS[kind]: iter(media) for kind, media in shown.items()}
    ordered = (next(left[marker]) for marker in re.findall("|".join(left), text) if marker)
    return Message("user", text, media=tuple(ordered))


def _typed(kind: Literal["image", "video"], files: Sequence[str | Path], prefix: str) -> list[Media]:
    """Whoever types a path may mean a link, which is followed."""
    paths = [Path(os.path.realpath(os.path.expanduser(file))) for file in files]
    named = zip(paths, files, strict=True)
    return [Media(path.name, str(path.parent), f"{prefix}{kind} {file}", kind) for path, file in named]


def media_of(template: ChatTemplate | None, messages: Sequence[Message], ids: Sequence[int]) -> PromptMedia | None:
    """What the images of ``messages`` add to their prompt ``ids``; None without images.

    Raises ``DataError`` for an image that has changed since it was measured."""
    return prompt_media(template, np.array(ids, np.int64), references(template, messages, ids))


def references(template: ChatTemplate | None, messages: Sequence[Message], ids: Sequence[int]) -> tuple[str, ...]:
    """``Sample.media`` of the prompt ``ids``; nothing is decoded. Raises ``RowError`` for ids that end inside an image."""
    if not any(message.media for message in messages):
        return ()
    return _reader(template).references(messages, list(ids))


def prompt_media(template: ChatTemplate | None, ids: Ints, media: tuple[str, ...]) -> PromptMedia | None:
    """What ``media``, as in ``Sample.media``, adds to its prompt, int64 [S]; None for nothing. Raises as :func:`media_of`."""
    if not media:
        return None
    parts = media_parts(template, ids, media)
    with ThreadPoolExecutor(_THREADS) as pool:
        return joined_media(parts, list(pool.map(lambda part: read_part(template, ids, part), parts)))


def media_parts(template: ChatTemplate | None, ids: Ints, media: Sequence[str]) -> list[MediaPart]:
    """The parts of a prompt, int64 [S], with one of ``media`` each; together they are the prompt. The token before an image,
    which begins it, is in its part."""
    spans = _reader(template).spans(ids.tolist(), media)
    bounds = [0, *(max(before[1], span[0] - 1) for before, span in pairwise(spans)), len(ids)]
    return [
        MediaPart(*bound, span, text) for bound, span, text in zip(pairwise(bounds), spans, media, strict=True)
    ]  # fmt: skip


def read_part(template: ChatTemplate | None, ids: Ints, part: MediaPart) -> PromptMedia:
    """Decode the image or video of a part; positions and spans count from its begin. Raises as :func:`media_of`."""
    array, reader = ids[part.start : part.end], _reader(template)
    size = len(array)
    ends = np.full(size, size, np.int32)
    made = Sample(array, np.full(size, IGNORE, np.int64), np.arange(size), ends, media=(part.media,))
    batch = reader.complete(collate([[made]], pad_id=0), [[made]])
    known = reader.token_inputs
    own = {name: values for name, values in batch.inputs.items() if name not in known}
    tokens = {name: values for name, values in batch.inputs.items() if name in known}
    span = MediaSpan(part.span[0] - part.start, part.span[1] - part.start, own)
    return PromptMedia(batch.position_ids[0], tokens, (span,))


def joined_media(parts: Sequence[MediaPart], read: Sequence[PromptMedia]) -> PromptMedia:
    """The whole prompt of its parts as they were read. Behind an image positions go on from the largest so far."""
    positions: list[Ints] = []
    following = 0
    for found in read:
        positions.append(found.positions + following)
        following = int(positions[-1].max()) + 1
    names = read[0].inputs
    inputs = {name: np.concatenate([found.inputs[name] for found in read], axis=1) for name in names}
    spans = (MediaSpan(*part.span, found.spans[0].inputs) for part, found in zip(parts, read, strict=True))
    return PromptMedia(np.concatenate(positions), inputs, tuple(spans))


def _reader(template: ChatTemplate | None) -> MediaReader:
    reader: Any = template
    assert isinstance(reader, MediaReader)
    return reader


def check_media(template: ChatTemplate | None, messages: Sequence[Message]) -> None:
    """Raises ``UsageError`` for images and videos where the model reads none."""
    media = [media for message in messages for media in message.media]
    if media and not isinstance(template, MediaReader):
        fix = "ask a model that sees, such as ernie45-vl or paddleocr-vl"
        raise UsageError(
            f"this model reads no {media[0].kind}s", where=media[0].where, found=media[0].source[:80], fix=fix
        )


def prompt_inputs(
    media: Sequence[PromptMedia | None], shifts: Sequence[int], numbers: Ints, real: Ints
) -> tuple[Ints, Inputs]:
    """Positions [b, w] or, where prompts have images, [b, w, axes] of new columns, and the further inputs of all together.

    Args:
        media, shifts: of each row; see ``PromptMedia.shift``. numbers: int64 [b, w], those of the columns' tokens in their rows.
        real: [b, w], 1 for a token, 0 for padding. A pass has tokens of prompts, or tokens behind them.
    """
    b, w = numbers.shape
    first = [int(numbers[row, np.argmax(real[row] != 0)]) for row in range(b)]
    seen = [
        row for row, found in enumerate(media) if found and real[row].any() and first[row] < len(found.positions)
    ]  # fmt: skip
    if not seen:
        return numbers + np.array(shifts, np.int64)[:, None], {}
    chosen = [(row, found) for row in seen if (found := media[row]) is not None]
    places = np.repeat(numbers[..., None], chosen[0][1].positions.shape[1], axis=2)
    inputs: Inputs = {}
    others: list[Inputs] = []
    for row, found in chosen:
        columns = np.flatnonzero(real[row])
        positions, given = found.part(first[row], first[row] + len(columns))
        places[row, columns] = positions
        for name in found.inputs:
            values = given.pop(name)
            inputs.setdefault(name, np.zeros((b, w, *values.shape[2:]), values.dtype))[row, columns] = values[0]
        others.append(given)
    return places, _appended(inputs, others)
