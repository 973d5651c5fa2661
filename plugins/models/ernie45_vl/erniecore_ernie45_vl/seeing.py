"""A chat template that sees: where a message has images, it writes their number, begin and end tokens and a
placeholder for each of their tokens, and makes batches with the pixels behind them.

Sizes come from headers, so rows become tokens without decoding anything; pixels are read when a batch needs them, and a
file whose content has changed since is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from erniecore_media import Limits, MediaError, decode, inspect, read_bytes, upright_size
from erniecore_text import JinjaChatTemplate

from erniecore.api import DataError, Json, RowError
from erniecore.api.data import IMAGE_MARKER, Batch, Media, Message, Sample, codes
from erniecore.api.model import Segment
from erniecore_ernie45_vl.images import MERGE, Sizing, patches, resized
from erniecore_ernie45_vl.positions import IMAGE, Grid, sample_positions
from erniecore_ernie45_vl.prompts import MEDIA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore_ernie45_vl.images import Floats

    Array: TypeAlias = NDArray[Any]

#: tokens of the vocabulary: before, instead of and behind an image
START, PLACEHOLDER, END = "<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>"
#: images of a batch that are decoded at the same time
_THREADS = 4


@dataclass(frozen=True)
class Reading:
    """How images are read.

    Attributes:
        roots: further directories that images may lie in, besides that of the data file.
        upright: turn images as their EXIF note says.
    """

    sizing: Sizing
    limits: Limits
    roots: tuple[str, ...] = ()
    upright: bool = False

    def bytes_of(self, source: str, base: str) -> bytes:
        """The content of a file or data URL. Raises ``MediaError``."""
        return read_bytes(source, [base or ".", *self.roots], self.limits)

    def grid(self, data: bytes) -> Grid:
        """Patches of the image, from its header. Raises ``MediaError``."""
        header = inspect(data, self.limits)
        width, height = upright_size(header, data, self.limits) if self.upright else (header.width, header.height)
        try:
            rows, columns = self.sizing.size_of(height, width)
        except ValueError as error:
            raise MediaError(str(error), found=f"{width} x {height}", expected="another size") from error
        return Grid(1, rows // self.sizing.patch, columns // self.sizing.patch)

    def pixels(self, data: bytes, grid: Grid) -> Floats:
        """Patches float32 [N, 3 p p]. Raises ``MediaError``."""
        image = decode(data, self.limits, upright=self.upright)
        size = grid.rows * self.sizing.patch, grid.columns * self.sizing.patch
        return patches(resized(image, size)[None], self.sizing)


class Known(NamedTuple):
    """What rows need of an image."""

    sha256: str
    grid: Grid

    @property
    def tokens(self) -> int:
        """Placeholders that stand for it."""
        return self.grid.merged(MERGE).size


class SeeingTemplate(JinjaChatTemplate):
    """``base`` with images. See ``erniecore.api.data.MediaReader``.

    Args:
        special_tokens: of the tokenizer. reading: limits and sizes of images.
    """

    def __init__(self, base: JinjaChatTemplate, special_tokens: Mapping[str, int], reading: Reading) -> None:
        super().__init__(base.source, base.turn_end, base.stop, base.variables, base.file, base.trusted)
        self._base, self._reading = base, reading
        self._ids = {token: special_tokens[token] for token in (START, PLACEHOLDER, END) if token in special_tokens}
        self._known: dict[tuple[str, str], Known] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._base, self._ids, self._reading)

    def shared_shape(self, messages: Sequence[Message], *args: Any, **names: Any) -> Any:
        """``None`` with images: they are no texts."""
        return None if _has_media(messages) else super().shared_shape(messages, *args, **names)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        *,
        add_generation_prompt: bool = True,
        thinking: bool | None = None,
    ) -> str:
        if not _has_media(messages):
            return super().render(messages, tools, add_generation_prompt=add_generation_prompt, thinking=thinking)
        found = self.segments(messages, tools, add_generation_prompt=add_generation_prompt, thinking=thinking)
        return "".join(segment.text for segment in found)

    def segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        *,
        add_generation_prompt: bool = False,
        thinking: bool | None = None,
    ) -> list[Segment]:
        """As without images, and in place of each marker its number and placeholders. Raises ``RowError`` also for images
        that cannot be read."""
        found = super().segments(messages, tools, add_generation_prompt=add_generation_prompt, thinking=thinking)
        return list(self._expanded(found, messages)) if _has_media(messages) else found

    def _expanded(self, segments: Sequence[Segment], messages: Sequence[Message]) -> Iterator[Segment]:
        left = {i: list(message.media) for i, message in enumerate(messages)}
        number = 0
        for segment in segments:
            if segment.trusted or not (messages[segment.message].media if segment.message >= 0 else ()):
                yield segment
                continue
            for place, text in enumerate(segment.text.split(IMAGE_MARKER)):
                if place:
                    number += 1
                    known = self.look(left[segment.message].pop(0))
                    yield replace(segment, text=self.written(number, known.tokens), trusted=True)
                if text:
                    yield replace(segment, text=text)
        for media in (media for rest in left.values() for media in rest):
            raise _row_error(media, MediaError("the chat template leaves the image out", found=media.source[:80]))

    def written(self, number: int, tokens: int) -> str:
        """What stands for an image of so many tokens, the conversation's ``number``-th (from 1)."""
        return f"{MEDIA['image'][0]} {number}:{START}" + PLACEHOLDER * tokens + END

    def look(self, media: Media) -> Known:
        """Hash and patches of an image, remembered. Raises ``RowError``."""
        key = media.source, media.base
        if key not in self._known:
            if len(self._ids) < 3:
                missing = next(token for token in (START, PLACEHOLDER, END) if token not in self._ids)
                fix = "add it to added_tokens.json of the tokenizer, or take the tokenizer of a published model"
                raise _row_error(media, MediaError("the tokenizer has no token for images", found=missing, fix=fix))
            try:
                data = self._reading.bytes_of(*key)
                self._known[key] = Known(hashlib.sha256(data).hexdigest(), self._reading.grid(data))
            except MediaError as error:
                raise _row_error(media, error) from error
        return self._known[key]

    def references(self, messages: Sequence[Message], ids: Sequence[int]) -> tuple[str, ...]:
        """The first images of ``messages``: as many as begin in ``ids``. Raises ``RowError`` where the ids end inside one."""
        if not _has_media(messages):
            return ()
        count = ids.count(self._ids[START])
        media = [media for message in messages for media in message.media][:count]
        tokens = sum(self.look(m).tokens for m in media)
        if tokens != ids.count(self._ids[PLACEHOLDER]):
            raise _row_error(media[-1], MediaError("the row is cut inside an image", fix="raise data.max_seq_len"))
        return tuple(_written(m, self.look(m)) for m in media)

    def patches(self, media: str) -> int:
        """Those of all frames of a video."""
        return _grid(json.loads(media)).size

    def unchanged(self, media: str) -> bool:
        """Whether the content has the hash that was noted."""
        facts = json.loads(media)
        try:
            data = self._reading.bytes_of(facts["source"], facts["base"])
        except MediaError:
            return False
        return bool(hashlib.sha256(data).hexdigest() == facts["sha256"])

    def complete(self, batch: Batch, rows: Sequence[Sequence[Sample]]) -> Batch:
        """With pixels [N, 3 p p] and grids [images, 3] in the order of the placeholders, kinds of tokens [B, S], and positions
        [B, S, 3] that begin anew with each sample. Raises ``DataError`` for an image that has changed."""
        samples = [sample for row in rows for sample in row]
        media = [(sample, json.loads(text)) for sample in samples for text in sample.media]
        if not media:
            return batch
        positions_BS3 = np.repeat(batch.position_ids[..., None], 3, axis=2)
        kinds_BS = np.where(batch.input_ids == self._ids[PLACEHOLDER], IMAGE, 0)
        for i, row in enumerate(rows):
            start = 0
            for sample in row:
                grids = {IMAGE: [_grid(json.loads(text)) for text in sample.media]} if sample.media else {}
                part = slice(start, start + len(sample))
                positions_BS3[i, part] = sample_positions(kinds_BS[i, part], sample.position_ids, grids, MERGE)
                start += len(sample)
        with ThreadPoolExecutor(_THREADS) as pool:
            pixels = list(pool.map(self._load, media))
        around = [self._ids[START], self._ids[END]]
        inputs: dict[str, Array] = {
            "pixel_values": np.concatenate(pixels),
            "image_grid_thw": np.array([_grid(facts) for _, facts in media], np.int64),
            "mm_token_type_ids": kinds_BS,
            "moe_mm_token_type_ids": np.where(np.isin(batch.input_ids, around), IMAGE, kinds_BS),
        }
        return replace(batch, position_ids=positions_BS3, inputs=inputs)

    def _load(self, item: tuple[Sample, Mapping[str, Any]]) -> Floats:
        sample, facts = item
        try:
            data = self._reading.bytes_of(facts["source"], facts["base"])
            if hashlib.sha256(data).hexdigest() != facts["sha256"]:
                fix = "start the run again, so that the rows are tokenized with the images of today"
                raise MediaError(
                    "the image has changed since its row was tokenized", found=facts["source"][:80], fix=fix
                )
            return self._reading.pixels(data, _grid(facts))
        except MediaError as error:
            where = sample.origin.place()
            raise DataError(
                error.message,
                code=codes.BAD_MEDIA,
                where=where,
                found=error.found,
                expected=error.expected,
                fix=error.fix,
            ) from error


def _has_media(messages: Sequence[Message]) -> bool:
    return any(message.media for message in messages)


def _written(media: Media, known: Known) -> str:
    facts = {"source": media.source, "base": media.base, "sha256": known.sha256, "grid": known.grid}
    return json.dumps(facts, sort_keys=True)


def _grid(facts: Mapping[str, Any]) -> Grid:
    return Grid(*facts["grid"])


def _row_error(media: Media, error: MediaError) -> RowError:
    return RowError(
        error.message,
        code=codes.BAD_MEDIA,
        where=media.where,
        found=error.found,
        expected=error.expected,
        fix=error.fix,
    )
