"""A chat template that sees: where a message has images or videos, it writes their number, begin and end tokens and a
placeholder for each of their tokens, and makes batches with the pixels behind them.

Sizes come from headers, so rows become tokens without decoding anything; pixels are read when a batch needs them, and a
file whose content has changed since is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from erniecore_media import MediaError, as_png
from erniecore_text import JinjaChatTemplate

from erniecore.api import DataError, Json, RowError
from erniecore.api.data import MARKERS, Batch, Draw, Media, MediaReader, Message, Sample, SeenMedia, codes
from erniecore.api.model import Segment
from erniecore_ernie45_vl.images import MERGE, Sizing, frames_of
from erniecore_ernie45_vl.positions import IMAGE, TEXT, VIDEO, Grid, routed_as_vision, sample_positions
from erniecore_ernie45_vl.prompts import MEDIA
from erniecore_ernie45_vl.reading import Known, Reading, digest

if TYPE_CHECKING:
    from erniecore_media.augment import Change
    from numpy.typing import NDArray

    from erniecore_ernie45_vl.images import Floats

    Array: TypeAlias = NDArray[Any]

#: tokens of the vocabulary: before, instead of and behind an image
START, PLACEHOLDER, END = "<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>"
#: the same of videos; a vocabulary without their placeholder, as the published code has it, takes that of images
VIDEO_START, VIDEO_PLACEHOLDER, VIDEO_END = "<|VIDEO_START|>", "<|VIDEO_PLACEHOLDER|>", "<|VIDEO_END|>"
_TOKENS = (START, PLACEHOLDER, END, VIDEO_START, VIDEO_PLACEHOLDER, VIDEO_END)
#: kind of media -> that of its tokens, and the names of the model's inputs
KINDS = {
    "image": (IMAGE, "pixel_values", "image_grid_thw"),
    "video": (VIDEO, "pixel_values_videos", "video_grid_thw"),
}
#: names of the model's inputs with a value for each token: its kind, and whether vision experts compute it
TOKEN_INPUTS = ("mm_token_type_ids", "moe_mm_token_type_ids")
#: images and videos whose headers are remembered at a time
_REMEMBERED = 1 << 16
#: images of a batch that are decoded at the same time
_THREADS = 4


class SeeingTemplate(JinjaChatTemplate):
    """``base`` with images. See ``erniecore.api.data.MediaReader``.

    Args:
        special_tokens: of the tokenizer. reading: limits and sizes of images.
    """

    def __init__(self, base: JinjaChatTemplate, special_tokens: Mapping[str, int], reading: Reading) -> None:
        super().__init__(base.source, base.turn_end, base.stop, base.variables, base.file, base.trusted)
        self._base, self._reading = base, reading
        self._ids = {token: special_tokens[token] for token in _TOKENS if token in special_tokens}
        self._known: dict[Media, Known] = {}

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
        numbers = dict.fromkeys(KINDS, 0)
        for segment in segments:
            if segment.trusted or not (messages[segment.message].media if segment.message >= 0 else ()):
                yield segment
                continue
            markers = {MARKERS[media.kind] for media in messages[segment.message].media}
            for text in re.split("(" + "|".join(sorted(markers)) + ")", segment.text):
                if text in markers:
                    if not left[segment.message]:  # a template may bring together what stood around an image
                        media, fix = messages[segment.message].media[-1], f"write {text} for images alone"
                        raise _row_error(
                            media, MediaError("the text becomes a marker of an image", found=text, fix=fix)
                        )
                    media = left[segment.message].pop(0)
                    numbers[media.kind] += 1
                    yield replace(segment, text=self._placed(media, numbers[media.kind]), trusted=True)
                elif text:
                    yield replace(segment, text=text)
        for media in (media for rest in left.values() for media in rest):
            raise _row_error(media, MediaError("the chat template leaves the image out", found=media.source[:80]))

    def written(self, number: int, tokens: int) -> str:
        """What stands for an image of so many tokens, the conversation's ``number``-th (from 1)."""
        return f"{MEDIA['image'][0]} {number}:{START}" + PLACEHOLDER * tokens + END

    def _placed(self, media: Media, number: int) -> str:
        tokens = self.look(media).tokens
        if media.kind == "image":
            return self.written(number, tokens)
        placeholder = VIDEO_PLACEHOLDER if VIDEO_PLACEHOLDER in self._ids else PLACEHOLDER
        return f"{MEDIA['video'][0]} {number}:{VIDEO_START}" + placeholder * tokens + VIDEO_END

    def look(self, media: Media) -> Known:
        """Hash and patches of an image or a video, remembered. Raises ``RowError``."""
        source = media.source
        if source.startswith("data:"):  # what a server has answered is not kept
            source = hashlib.sha256(source.encode()).hexdigest()
        key = replace(media, where="", source=source)
        if key not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            needed = (START, PLACEHOLDER, END) if media.kind == "image" else (VIDEO_START, PLACEHOLDER, VIDEO_END)
            missing = next((token for token in needed if token not in self._ids), None)
            if missing is not None:
                fix = "add it to added_tokens.json of the tokenizer, or take the tokenizer of a published model"
                message = f"the tokenizer has no token for {media.kind}s"
                raise _row_error(media, MediaError(message, found=missing, fix=fix))
            try:
                self._known[key] = self._reading.known(media, self._reading.parts(media))
            except MediaError as error:
                raise _row_error(media, error) from error
        return self._known[key]

    def references(self, messages: Sequence[Message], ids: Sequence[int]) -> tuple[str, ...]:
        """The first images of ``messages``: as many as begin in ``ids``. Raises ``RowError`` where the ids end inside one."""
        if not _has_media(messages):
            return ()
        count = sum(ids.count(self._ids[token]) for token in (START, VIDEO_START) if token in self._ids)
        media = [media for message in messages for media in message.media][:count]
        tokens = sum(self.look(m).tokens for m in media)
        if tokens != sum(ids.count(token) for token in self._placeholders()):
            raise _row_error(media[-1], MediaError("the row is cut inside an image", fix="raise data.max_seq_len"))
        return tuple(_written(m, self.look(m)) for m in media)

    @property
    def token_inputs(self) -> frozenset[str]:
        """Kinds of tokens, and which of them go to vision experts."""
        return frozenset(TOKEN_INPUTS)

    def spans(self, ids: Sequence[int], media: Sequence[str]) -> list[tuple[int, int]]:
        """The first placeholders are those of the first image or video; of one that is cut off, those that are there."""
        places, start = np.flatnonzero(np.isin(ids, self._placeholders() if media else [])), 0
        found: list[tuple[int, int]] = []
        for text in media:
            here = places[start : start + _read(text)[1].tokens].tolist()
            found.append((here[0], here[-1] + 1) if here else (len(ids), len(ids)))
            start += len(here)
        return found

    def patches(self, media: str) -> int:
        """Those of all frames of a video."""
        return _read(media)[1].grid.size

    def seen(self, media: str) -> SeenMedia:
        """Of a video also the time of each frame; an odd number of them is made even by the last one again."""
        source, known = _read(media)
        side, grid, times = self._reading.sizing_of(source.kind).patch, known.grid, [at for _, at in known.frames]
        seconds = (*times, *times[-1:] * (grid.frames - len(times))) if source.kind == "video" else ()
        size = grid.columns * side, grid.rows * side
        return SeenMedia(source.kind, source.source, known.tokens, grid.size, *size, seconds)

    def changes(self, sample: Sample, draw: Draw | None) -> list[tuple[Change, ...]]:
        """Of images what ``augmentation.py`` describes; of videos nothing."""
        found = map(_read, sample.media)
        return [
            self._reading.drawn(source, known, draw, sample.origin.position, i)
            for i, (source, known) in enumerate(found)
        ]

    def frames(self, media: str, changes: Sequence[Change] = ()) -> Iterator[bytes]:
        """As PNG files, one after the other. Raises ``DataError`` for a file that has changed."""
        source, known = _read(media)
        values = self._load(source.source[:80], source, known, changes)
        for frame in frames_of(values, known.grid, self._reading.sizing_of(source.kind)):
            yield as_png(frame)

    def reads_as(self, other: MediaReader) -> bool:
        """For a template of the same class whose patches have the same values and places; sizes may differ."""

        def cut(sizing: Sizing) -> Sizing:
            return replace(sizing, fewest=0, most=0)

        if not isinstance(other, SeeingTemplate) or type(other) is not type(self):
            return False
        return cut(other._reading.sizing) == cut(self._reading.sizing)

    def unchanged(self, media: str) -> bool:
        """Whether the content has the hash that was noted."""
        source, known = _read(media)
        try:
            return digest(self._reading.parts(source)) == known.sha256
        except MediaError:
            return False

    def _placeholders(self) -> list[int]:
        return [self._ids[token] for token in (PLACEHOLDER, VIDEO_PLACEHOLDER) if token in self._ids]

    def complete(self, batch: Batch, rows: Sequence[Sequence[Sample]], *, draw: Draw | None = None) -> Batch:
        """With pixels [N, 3 p p] and grids [images, 3] in the order of the placeholders, kinds of tokens [B, S], and positions
        [B, S, 3] that begin anew with each sample. Raises ``DataError`` for an image that has changed."""
        media = [
            (sample.origin.place(), *_read(text), changes)
            for row in rows
            for sample in row
            for text, changes in zip(sample.media, self.changes(sample, draw), strict=True)
        ]
        if not media:
            return batch
        positions_BS3 = np.repeat(batch.position_ids[..., None], 3, axis=2)
        kinds_BS = np.zeros_like(batch.input_ids)
        for i, row in enumerate(rows):
            start = 0
            for sample in row:
                part = slice(start, start + len(sample))
                kinds_BS[i, part], grids = self._kinds(sample)
                positions_BS3[i, part] = sample_positions(kinds_BS[i, part], sample.position_ids, grids, MERGE)
                start += len(sample)
        with ThreadPoolExecutor(_THREADS) as pool:
            pixels = list(pool.map(lambda item: self._load(*item), media))
        inputs: dict[str, Array] = {}
        for kind, (_, values, grid_name) in KINDS.items():
            if found := [i for i, (_, source, *_) in enumerate(media) if source.kind == kind]:
                inputs[values] = np.concatenate([pixels[i] for i in found])
                inputs[grid_name] = np.array([media[i][2].grid for i in found], np.int64)
        around = [[self._ids[t] for t in pair if t in self._ids] for pair in ((START, VIDEO_START), (END, VIDEO_END))]
        routed_BS = routed_as_vision(batch.input_ids, kinds_BS, *around)
        vision_BS = np.where(routed_BS & (kinds_BS == TEXT), IMAGE, kinds_BS)
        inputs |= dict(zip(TOKEN_INPUTS, (kinds_BS, vision_BS), strict=True))
        return replace(batch, position_ids=positions_BS3, inputs=inputs)

    def _kinds(self, sample: Sample) -> tuple[Array, dict[int, list[Grid]]]:
        """Kind of each token [n], and the grids by kind."""
        kinds_n = np.zeros(len(sample), np.int64)
        grids: dict[int, list[Grid]] = {}
        for text, span in zip(sample.media, self.spans(sample.input_ids.tolist(), sample.media), strict=True):
            source, known = _read(text)
            kind = KINDS[source.kind][0]
            kinds_n[slice(*span)] = kind
            grids.setdefault(kind, []).append(known.grid)
        return kinds_n, grids

    def _load(self, where: str, source: Media, known: Known, changes: Sequence[Change] = ()) -> Floats:
        try:
            parts = self._reading.parts(source)
            if digest(parts) != known.sha256:
                fix = "start the run again, so that the rows are tokenized with the files of today"
                message = f"the {source.kind} has changed since its row was tokenized"
                raise MediaError(message, found=source.source[:80], fix=fix)
            return self._reading.values(source, known, parts, changes)
        except MediaError as error:
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
    facts: dict[str, Any] = {"source": media.source, "base": media.base, "sha256": known.sha256, "grid": known.grid}
    if media.kind == "video":
        facts |= {"kind": media.kind, "frames": known.frames, "listed": media.frames}
    return json.dumps(facts, sort_keys=True)


def _read(text: str) -> tuple[Media, Known]:
    """The reverse of :func:`_written`."""
    facts = json.loads(text)
    media = Media(facts["source"], facts["base"], "", facts.get("kind", "image"), tuple(facts.get("listed", ())))
    frames = tuple((index, seconds) for index, seconds in facts.get("frames", ()))
    return media, Known(facts["sha256"], Grid(*facts["grid"]), frames)


def _row_error(media: Media, error: MediaError) -> RowError:
    return RowError(
        error.message,
        code=codes.BAD_MEDIA,
        where=media.where,
        found=error.found,
        expected=error.expected,
        fix=error.fix,
    )
