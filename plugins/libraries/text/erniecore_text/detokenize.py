"""Ids to text, at once or as they arrive. Works on the bytes that each id spells; knows no files and no templates."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Decodes ids one by one and holds back bytes that do not yet form a character.

    Args:
        spelled: bytes of each id.
        special: ids of special tokens; they never join the bytes around them into one character.
        skip_special: leave special tokens out.
    """

    def __init__(self, spelled: Sequence[bytes], special: AbstractSet[int], *, skip_special: bool = True) -> None:
        self._spelled, self._special, self._skip = spelled, special, skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, *ids: int) -> str:
        """The text that these ids complete; may be empty."""
        out = []
        for token in ids:
            if token in self._special:
                out.append(self.finish())
                if not self._skip:
                    out.append(self._spelled[token].decode())
            elif 0 <= token < len(self._spelled):
                out.append(self._decoder.decode(self._spelled[token]))
            else:
                out += (self.finish(), REPLACEMENT)
        return "".join(out)

    def finish(self) -> str:
        """What was held back, as U+FFFD; the stream can be used again."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def piece_bytes(model: Any, size: int) -> list[bytes]:
    """Bytes of the pieces of a ``SentencePieceProcessor``, filled with nothing up to ``size`` ids."""
    table = []
    for i in range(model.get_piece_size()):
        piece = model.id_to_piece(i)
        if model.is_byte(i):
            table.append(bytes([int(piece[3:5], 16)]))
        else:
            table.append(piece.replace("\u2581", " ").encode())
    return table + [b""] * (size - len(table))
