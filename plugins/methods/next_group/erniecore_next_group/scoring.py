"""How often a model makes of a prompt exactly what a row has: the same pixels, the same words, the same codes.

Rows with one part on each side are looked at: words and an image or a sound, or a sound and how it goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from erniecore_ernie5.audio_tokens import Codes
from erniecore_ernie5.sequence import MediaTokens
from erniecore_ernie5.tokenizer import Ernie5Tokenizer

from erniecore.api import Json, RowError
from erniecore.api.data import Origin
from erniecore.api.rows import read_rows as rows_of
from erniecore_next_group.files import read_audio, read_for, read_image
from erniecore_next_group.generation import (
    continue_sound,
    describe_audio,
    describe_image,
    draw_text,
    play_text,
    started,
)
from erniecore_next_group.rows import Part, Parts, parse


class Score(NamedTuple):
    """Of one task.

    Attributes:
        exact: rows of which everything is right. units: share of pixels, or codes, or words that are right, as a mean over rows.
    """

    rows: int
    exact: int
    units: float


def read_rows(file: Path) -> list[Parts]:
    """Raises ``DataError`` for a file that cannot be read, or a row that is none of parts, by its line."""
    return [_parsed(row, Origin(str(file), line)) for line, row in rows_of(file)]


def _parsed(row: Json | RowError, origin: Origin) -> Parts:
    try:
        if isinstance(row, RowError):
            raise row
        return parse(row, origin)
    except RowError as error:
        error.where = origin.place(error.where)
        raise


def score_rows(model: Any, tokenizer: Ernie5Tokenizer, rows: Sequence[Parts], most: int = 0) -> Mapping[str, Score]:
    """Task -> score, of at most ``most`` rows of each task (0: all); a task is ``text-to-image``, for example.

    Raises:
        RowError: an image or a sound of a row cannot be read.
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        for task, share in _scored(model, tokenizer, row, found, most):
            found.setdefault(task, []).append(share)
    return {
        task: Score(len(shares), sum(share == 1.0 for share in shares), float(np.mean(shares)))
        for task, shares in sorted(found.items())
    }


def _scored(
    model: Any, tokenizer: Ernie5Tokenizer, row: Parts, found: Mapping[str, Sequence[float]], most: int
) -> Iterator[tuple[str, float]]:
    if len(row.given) != 1 or len(row.made) != 1:
        return
    given, wanted = row.given[0], row.made[0]
    task = f"{given.kind}-to-{wanted.kind}"
    if task not in TASKS or (most and len(found.get(task, ())) >= most):
        return
    sources = Sources(tokenizer.media, os.path.dirname(row.origin.file) or ".")
    try:
        yield task, TASKS[task](started(model, tokenizer), sources, given, wanted)
    except RowError as error:
        error.where = row.origin.place(error.where)
        raise


class Sources(NamedTuple):
    """Where media of a row are."""

    media: MediaTokens
    root: str

    def pixels(self, part: Part) -> Any:
        """Of an image, as the model can know them."""
        image = self.media.image
        with read_for(part):
            return image.pixels(image.values(read_image(part.value, [self.root], image)))

    def codes(self, part: Part) -> Codes:
        """The codes of a sound in a row."""
        with read_for(part):
            return self.media.audio.encode(read_audio(part.value, [self.root], self.media.audio))


def _drawn(maker: Any, sources: Sources, given: Part, wanted: Part) -> float:
    return float((draw_text(maker, given.value) == sources.pixels(wanted)).all(axis=-1).mean())


def _described(maker: Any, sources: Sources, given: Part, wanted: Part) -> float:
    return _words(describe_image(maker, sources.pixels(given)), wanted.value)


def _heard(maker: Any, sources: Sources, given: Part, wanted: Part) -> float:
    return _words(describe_audio(maker, sources.codes(given)), wanted.value)


def _played(maker: Any, sources: Sources, given: Part, wanted: Part) -> float:
    codes = sources.codes(wanted)
    return _codes(play_text(maker, given.value, len(codes) + 1), codes)


def _continued(maker: Any, sources: Sources, given: Part, wanted: Part) -> float:
    codes = sources.codes(wanted)
    return _codes(continue_sound(maker, sources.codes(given), len(codes) + 1), codes)


def _words(found: str, wanted: str) -> float:
    ours, theirs = found.split(), wanted.split()
    return sum(a == b for a, b in zip(ours, theirs, strict=False)) / max(len(ours), len(theirs))


def _codes(found: Codes, wanted: Codes) -> float:
    same = min(len(found), len(wanted))
    return float((found[:same] == wanted[:same]).sum() / (max(len(found), len(wanted)) * wanted.shape[1]))


#: task -> the share of the wanted that is right
TASKS = {
    "text-to-image": _drawn,
    "image-to-text": _described,
    "text-to-audio": _played,
    "audio-to-text": _heard,
    "audio-to-audio": _continued,
}
