"""Encoding word by word where that provably gives the ids of the whole text: each word is asked for once and remembered.

A BPE model joins two neighboring pieces only into a piece of its vocabulary. Where no piece has a space behind another
character, nothing is ever joined across the start of a space, so a text can be cut in front of each run of spaces and its
parts encoded alone. With an identity normalizer and all spaces kept, that is exact; other models are not cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

#: SentencePiece's placeholder of the space
_SPACE_SYMBOL = "\u2581"
_BPE = 2
#: a run of spaces with what follows up to the next one; the last takes the spaces at the end
_WORDS = re.compile(r" *[^ ]+(?: +\Z)?| +")
#: words that are remembered, and the longest of them
_MAX_WORDS, _MAX_LENGTH = 1 << 17, 48


class _Known(dict[str, list[int]]):
    """Word -> ids; a word that is not there yet is encoded."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self._encode(word)
        if len(word) <= _MAX_LENGTH:
            if len(self) >= _MAX_WORDS:
                self.clear()
            self[word] = ids
        return ids


class WordEncoder:
    """Ids of texts by their words.

    Args:
        processor: of a model for which :func:`splits_at_spaces` holds.
        prefix: whether the model puts a space in front of every text.
    """

    def __init__(self, processor: Any, *, prefix: bool) -> None:
        self._encode, self._prefix = processor.encode, prefix
        self._known = _Known(processor.encode)

    def encode(self, text: str) -> list[int]:
        """The same as the model's own ``encode``. Raises ``RuntimeError`` for lone surrogates, as that does."""
        if self._prefix and "  " not in text and text[:1] != " " and text[-1:] not in ("", " "):
            words = text.split(" ")  # the model's own space takes the place of the one in front of each word
        else:
            words = _WORDS.findall(text)
            if self._prefix:
                words[1:] = [word[1:] for word in words[1:]]
        if len(words) * _MAX_LENGTH < len(text):  # scripts without spaces: nothing to remember
            return self._encode(text)  # type: ignore[no-any-return]
        return list(chain.from_iterable(map(self._known.__getitem__, words)))


class ModelSpecs(NamedTuple):
    """What a SentencePiece model does with a text.

    Attributes:
        bpe: joins pieces by rank (byte pair encoding). verbatim: no character is rewritten, no space removed.
        prefix: a space is put in front of every text.
    """

    bpe: bool
    verbatim: bool
    prefix: bool


def model_specs(model: bytes) -> ModelSpecs:
    """The specs of ``tokenizer.model``, given its bytes."""
    specs = dict(_fields(model, wanted=(2, 3)))
    trainer, normalizer = (dict(_fields(specs.get(n, b""))) for n in (2, 3))
    verbatim = (
        not trainer.get(24, 0)  # treat_whitespace_as_suffix
        and not normalizer.get(2, b"")  # precompiled_charsmap: nothing is rewritten
        and not normalizer.get(4, 1)  # remove_extra_whitespaces
        and normalizer.get(5, 1)  # escape_whitespaces
    )
    return ModelSpecs(trainer.get(3, 1) == _BPE, bool(verbatim), bool(normalizer.get(3, 1)))  # add_dummy_prefix


def word_encoder(processor: Any, model: bytes) -> WordEncoder | None:
    """The words of a model, or ``None`` where they may not be encoded alone."""
    specs = model_specs(model)
    if not (specs.bpe and specs.verbatim and splits_at_spaces(processor)):
        return None
    return WordEncoder(processor, prefix=specs.prefix)


def splits_at_spaces(processor: Any) -> bool:
    """Whether no piece has a space behind another character."""
    pieces = (processor.id_to_piece(i) for i in range(processor.get_piece_size()))
    return not any(_SPACE_SYMBOL in piece.lstrip(_SPACE_SYMBOL) or " " in piece for piece in pieces)


def _fields(message: bytes, wanted: tuple[int, ...] = ()) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of a protocol buffer message, as far as its wire format tells: numbers and bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        value: Any = None
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            size, at = _varint(message, at)
            value = message[at : at + size] if not wanted or number in wanted else b""
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return
        if not wanted or number in wanted:
            yield number, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
