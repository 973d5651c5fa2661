"""Documents and passages to samples: tokens, with what the objectives must know of each. What is hidden, shuffled and paired is
drawn in training, anew in every step (``tasks.py``); nothing here is random. numpy only.

A sample is learned like one of pre-training (``labels`` are the next tokens). Its fields, int32 [n]:

* ``unit``: which word, phrase or entity a token belongs to, from 0; -1: none (a separator).
* ``sentence``: which sentence, from 0; -1: none.
* ``part``: of what the token is: 0 the text, 1 head, 2 relation, 3 tail of a triple, 4 the separator between triple and text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from erniecore.api import RowError
from erniecore.api.data import Document, codes
from erniecore.api.method import IGNORE, Record, Sample, Segment, Tokenizer
from erniecore_ernie3_pretrain.config import DISTANCE, DOCUMENT, KMLM, REORDER, TASKS, UKTP
from erniecore_ernie3_pretrain.rows import Passage, Triple
from erniecore_ernie3_pretrain.units import units_of

TEXT, HEAD, RELATION, TAIL, SEPARATOR = range(5)
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """Tokens with their fields, [n] each."""

    ids: Ints
    unit: Ints
    sentence: Ints
    part: Ints

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, start: int, stop: int) -> Tokens:
        """Those from ``start`` up to ``stop``."""
        where = slice(start, stop)
        return Tokens(self.ids[where], self.unit[where], self.sentence[where], self.part[where])


def usable(part: Ints, sentence: Ints) -> tuple[str, ...]:
    """The objectives that can use a sample: passages with a triple are masked and predicted, documents all the rest."""
    if (part == RELATION).any():
        return KMLM, UKTP
    found = (KMLM, DOCUMENT)
    return (*found, REORDER, DISTANCE) if len(np.unique(sentence[sentence >= 0])) > 1 else found


class Ernie3Encoder:
    """See ``erniecore.api.method.Encoder``.

    Args:
        tokenizer: its ``eos_id`` is the end token, and the separator. max_length: tokens of a sample at most.
        weights: objective -> weight; a sample that no objective with a weight can use is not kept.
    """

    accepts: tuple[type, ...] = (Document,)

    def __init__(self, tokenizer: Tokenizer, max_length: int, weights: Mapping[str, float]) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.wanted = frozenset(task for task in TASKS if weights[task])

    def encode(self, record: Record) -> Sequence[Sample]:
        """The samples of one record; a document that is too long has several.

        Raises:
            RowError: a text without words, a triple that is too long, or no objective that can use the row.
        """
        assert isinstance(record, Document)
        spans, triple = (record.spans, record.triple) if isinstance(record, Passage) else ((), None)
        text = self._tokens(record.text, spans)
        if not len(text):
            raise RowError("the text has no tokens", code=codes.NO_TARGETS, where="$")
        samples = [self._passage(triple, text, record)] if triple else self._documents(text, record)
        kept = [s for s in samples if self.wanted & set(usable(s.fields["part"], s.fields["sentence"]))]
        if not kept:
            able = dict.fromkeys(t for s in samples for t in usable(s.fields["part"], s.fields["sentence"]))
            raise RowError(
                "no objective of these settings can use the row",
                code=codes.NO_TARGETS,
                where="$",
                found="a passage with a triple" if triple else f"a text of {len(np.unique(text.sentence))} sentences",
                expected=f"one of {', '.join(able)} with a weight above 0",
                fix=f"set method.{next(iter(able))}, or remove the row",
            )
        lost = sum(map(len, samples)) - sum(map(len, kept))
        return [replace(kept[0], truncated=f"{lost} tokens in stretches of one sentence"), *kept[1:]] if lost else kept

    def _documents(self, text: Tokens, record: Record) -> list[Sample]:
        """Pieces that neither overlap nor leave a gap; the last label of each is the first token of the next."""
        following = np.append(text.ids[1:], self.tokenizer.eos_id)
        starts = range(0, len(text), self.max_length)
        pieces = [slice(start, start + self.max_length) for start in starts]
        return [_sample(text.cut(p.start, p.stop), following[p], record) for p in pieces]

    def _passage(self, triple: Triple, text: Tokens, record: Record) -> Sample:
        """Head, relation, tail, separator, text; where that is too long, the end of the text is cut off."""
        parts = [self._whole(value, part) for value, part in zip(triple, (HEAD, RELATION, TAIL), strict=True)]
        room = self.max_length - sum(map(len, parts)) - 1
        if room < 1:
            raise RowError(
                "the triple leaves no room for its passage",
                code=codes.TOO_LONG,
                where="$.triple",
                found=f"{self.max_length - room} tokens with the separator",
                expected=f"fewer than data.max_seq_len = {self.max_length}",
                fix="raise data.max_seq_len or shorten the triple",
            )
        nothing = np.full(1, -1)
        joined = [*parts, Tokens(np.array([self.tokenizer.eos_id]), nothing, nothing, np.array([SEPARATOR]))]
        joined.append(text.cut(0, room))
        tokens = Tokens(*(np.concatenate([getattr(one, name) for one in joined]) for name in Tokens.__annotations__))
        following = np.append(tokens.ids[1:], text.ids[room] if len(text) > room else self.tokenizer.eos_id)
        cut = f"{len(text) - room} tokens of the passage" if len(text) > room else ""
        return _sample(tokens, following, record, cut)

    def _whole(self, value: str, part: int) -> Tokens:
        ids = np.asarray(self.tokenizer.encode(value), np.int64)
        return Tokens(ids, np.full(len(ids), -1), np.full(len(ids), -1), np.full(len(ids), part))

    def _tokens(self, text: str, spans: Sequence[tuple[int, int]]) -> Tokens:
        """Tokens do not depend on the units: one that reaches into the next unit belongs to that where it begins."""
        units = units_of(text, spans)
        encoded = self.tokenizer.encode_segments([Segment(unit.text, trusted=False) for unit in units])
        counts = [len(ids) for ids in encoded]
        ids = np.asarray([token for one in encoded for token in one], np.int64)
        sentences = np.repeat(np.array([unit.sentence for unit in units], np.int64), counts)
        return Tokens(ids, np.repeat(np.arange(len(units)), counts), sentences, np.zeros(len(ids), np.int64))


def _sample(tokens: Tokens, labels: Ints, record: Record, truncated: str = "") -> Sample:
    n = len(tokens)
    fields = {
        name: value.astype(np.int32)
        for name, value in (("unit", tokens.unit), ("sentence", tokens.sentence), ("part", tokens.part))
    }
    labels = labels.astype(np.int64)
    assert (labels != IGNORE).any()
    return Sample(
        input_ids=tokens.ids.astype(np.int64),
        labels=labels,
        position_ids=np.arange(n, dtype=np.int64),
        end_rows=np.full(n, n, np.int32),
        fields=fields,
        truncated=truncated,
        origin=record.origin,
    )
