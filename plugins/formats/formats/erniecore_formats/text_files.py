"""Plain text files to rows: a document per line, per paragraph or per file, with the line on which it starts.

A row leaves here as the JSON object ``{"text": …}``, so that everything behind the reader is the same for all kinds of
file. Which of the three applies is the caller's choice; nothing is guessed from the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import IO

from erniecore.api import DataError, RowError
from erniecore.api.rows import DataFile, RawRow, codes, too_long
from erniecore_formats.json_rows import bounded_lines

#: (number of the first line, its bytes; none: longer than the limit)
_Block = tuple[int, "bytes | None"]

_CHUNK = 1 << 20
#: Room that the JSON form of a text takes around it.
_AROUND = 16


def read_text(file: DataFile) -> Iterator[RawRow]:
    """Yields the rows of a text file; see :func:`split_text`."""
    with file.open() as stream:
        yield from split_text(stream, file.limits.row_bytes, file.document)


def split_text(stream: IO[bytes], limit: int, document: str) -> Iterator[RawRow]:
    """One row per document that is not whitespace; ``document`` is a key of ``DOCUMENTS``. Line ends at its edges go.

    Raises ``DataError`` for any other ``document``."""
    if document not in DOCUMENTS:
        raise DataError(
            "text cannot be cut into such documents",
            code=codes.BAD_VALUE,
            where="document",
            found=repr(document),
            expected=" or ".join(DOCUMENTS),
        )
    for number, block in DOCUMENTS[document](stream, limit - _AROUND):
        yield number, too_long(limit) if block is None else _row(block)


def _row(block: bytes) -> bytes | RowError:
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as e:
        found = f"byte 0x{block[e.start]:02x} at {e.start + 1}"
        return RowError(
            "the text is not UTF-8", code=codes.BAD_UTF8, where="$.text", found=found, fix="save the file as UTF-8"
        )
    return json.dumps({"text": text}, ensure_ascii=False).encode()


def _by_line(stream: IO[bytes], limit: int) -> Iterator[_Block]:
    for number, line in bounded_lines(stream, limit):
        if line is None:
            yield number, None
        elif line.strip():
            yield number, line.strip(b"\r\n")


def _by_paragraph(stream: IO[bytes], limit: int) -> Iterator[_Block]:
    """Runs of lines that are not whitespace."""
    first, size, parts = 0, 0, list[bytes]()
    for number, line in bounded_lines(stream, limit):
        if line is not None and not line.strip():
            if first:
                yield first, b"".join(parts).strip(b"\r\n") if parts else None
            first, size, parts = 0, 0, []
            continue
        first = first or number
        size += limit + 1 if line is None else len(line)
        if line is not None and size <= limit:
            parts.append(line)
        else:
            parts.clear()
    if first:
        yield first, b"".join(parts).strip(b"\r\n") if parts else None


def _whole(stream: IO[bytes], limit: int) -> Iterator[_Block]:
    data = stream.read(limit + 1)
    if len(data) > limit:
        while stream.read(_CHUNK):
            pass
        yield 1, None
    elif data.strip():
        yield 1, data.strip(b"\r\n")


#: what makes a document -> how the stream is cut
DOCUMENTS: Mapping[str, Callable[[IO[bytes], int], Iterator[_Block]]] = {
    "line": _by_line,
    "paragraph": _by_paragraph,
    "file": _whole,
}
