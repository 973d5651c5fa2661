"""Rows of parts, and documents, to samples: tokens with what a model of text, images and audio must know of each. numpy only.

A sample begins with the begin token. Of a row with parts only the completion is learned, with the end token behind it; of a
document every token. Audio that goes on from the prompt into the completion is one sound. An image of the completion is drawn and
then read, one of the prompt is read only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from erniecore_ernie5.sequence import MediaTokens, Tokens, joined
from erniecore_ernie5.tokenizer import Ernie5Tokenizer

from erniecore.api import RowError
from erniecore.api.data import Document, codes
from erniecore.api.method import IGNORE, Record, Sample, Tokenizer
from erniecore_next_group.files import read_audio, read_for, read_image
from erniecore_next_group.rows import Part, Parts


class NextGroupEncoder:
    """See ``erniecore.api.method.Encoder``.

    Args:
        tokenizer: with tokens of images and audio, if it is that of such a model; others read documents only.
        max_length: tokens of a sample at most.
    """

    accepts: tuple[type, ...] = (Document,)

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.media = tokenizer.media if isinstance(tokenizer, Ernie5Tokenizer) else None

    def encode(self, record: Record) -> Sequence[Sample]:
        """A row with parts is one sample; a document has pieces that neither overlap nor leave a gap.

        Raises:
            RowError: nothing to learn, media that cannot be read, or a row that is too long.
        """
        assert isinstance(record, Document)
        if isinstance(record, Parts):
            return [self._row(record)]
        if not record.text.strip():
            raise RowError("the document has no text", code=codes.NO_TARGETS, where="$")
        ids = np.array([self.tokenizer.bos_id, *self.tokenizer.encode(record.text), self.tokenizer.eos_id], np.int64)
        starts = range(0, len(ids) - 1, self.max_length)
        pieces = [
            (ids[s : s + self.max_length][: len(ids) - 1 - s], ids[s + 1 : s + 1 + self.max_length]) for s in starts
        ]
        return [self._piece(one, labels, record) for one, labels in pieces]

    def _piece(self, ids: np.ndarray, labels: np.ndarray, record: Document) -> Sample:
        fields = self.media.plain(len(ids)).fields if self.media else {}
        return _sample(ids, labels, fields, record)

    def _row(self, record: Parts) -> Sample:
        if self.media is None:
            message, where = "this model reads and makes text only", "$"
            fix = "train a model with tokens of images and audio, such as ernie5"
            raise RowError(message, code=codes.BAD_VALUE, where=where, found="a row of parts", expected="text", fix=fix)
        tokens = tokens_of(record, self.media, self.tokenizer)
        if tokens.size > self.max_length:
            found, expected = f"{tokens.size} tokens", f"at most data.max_seq_len = {self.max_length}"
            fix = "raise data.max_seq_len, or remove parts"
            raise RowError(
                "the row is too long", code=codes.TOO_LONG, where="$", found=found, expected=expected, fix=fix
            )
        following = np.append(tokens.ids[1:], self.tokenizer.eos_id)
        learned = np.append(tokens.learned[1:], bool(record.made))
        return _sample(tokens.ids, np.where(learned, following, IGNORE), tokens.fields, record)


def tokens_of(record: Parts, media: MediaTokens, tokenizer: Tokenizer) -> Tokens:
    """All tokens of a row, the begin token first. Raises ``RowError`` for media that cannot be read."""
    row = Row(media, tokenizer, os.path.dirname(record.origin.file) or ".")
    parts = [*((part, False) for part in record.given), *((part, True) for part in record.made)]
    for index, (part, learned) in enumerate(parts):
        follows = index and part.kind == parts[index - 1][0].kind == "audio"
        goes_on = index + 1 < len(parts) and part.kind == parts[index + 1][0].kind == "audio"
        row.add(part, learned=learned, follows=bool(follows), goes_on=goes_on)
    return joined(row.tokens)


class Row:
    """Tokens of parts, one after the other.

    Attributes:
        tokens: what there is so far. at: the next position.
    """

    def __init__(self, media: MediaTokens, tokenizer: Tokenizer, root: str) -> None:
        self.media, self.tokenizer, self.root = media, tokenizer, root
        self.tokens = [media.text([tokenizer.bos_id], 0.0, learned=False)]
        self.at = 1.0

    def add(self, part: Part, *, learned: bool, follows: bool = False, goes_on: bool = False) -> None:
        """The tokens of a part. ``follows``, ``goes_on``: audio that is one sound with the part before, or behind it."""
        if part.kind == "text":
            self._text(self.tokenizer.encode(part.value), learned)
            return
        with read_for(part):
            if part.kind == "image":
                pixels = read_image(part.value, [self.root], self.media.image)
                self.image(self.media.image.values(pixels), learned)
            else:
                codes_TL = self.media.audio.encode(read_audio(part.value, [self.root], self.media.audio))
                self.audio(codes_TL, learned, begins=not follows, ends=not goes_on)

    def _text(self, ids: Sequence[int], learned: bool) -> None:
        self.tokens.append(self.media.text(ids, self.at, learned=learned))
        self.at += len(ids)

    def image(self, values: np.ndarray, drawn: bool) -> None:
        """Patches [G, G, d] of an image, drawn or read only."""
        self._text([self.media.markers.image_start], drawn)
        groups = self.media.drawn(values, self.at) if drawn else []
        self.tokens += [*groups, self.media.read(values, self.at)]
        self.at = self.media.after_image(self.at)
        self._text([self.media.markers.image_end], False)

    def audio(self, codes_TL: np.ndarray, made: bool, *, begins: bool = True, ends: bool = True) -> None:
        """Frames; those that are ``made`` are to be predicted, each by the token before it."""
        if begins:
            self._text([self.media.markers.audio_start], made)
        if made:
            self.tokens[-1].next_codes[-1] = codes_TL[0] + 1
        frames = self.media.frames(codes_TL, self.at)
        if made:
            frames.next_codes[:-1] = codes_TL[1:] + 1
            if ends:
                frames.next_codes[-1, 0] = self.media.end_code
        self.tokens.append(frames)
        self.at += len(codes_TL)
        if ends:
            self._text([self.media.markers.audio_end], False)


def _sample(ids: np.ndarray, labels: np.ndarray, fields: dict[str, np.ndarray], record: Document) -> Sample:
    n = len(ids)
    return Sample(
        input_ids=ids.astype(np.int64),
        labels=labels.astype(np.int64),
        position_ids=np.arange(n, dtype=np.int64),
        end_rows=np.full(n, n, np.int32),
        fields=fields,
        origin=record.origin,
    )
