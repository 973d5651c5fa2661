"""Train a small ERNIE-like SentencePiece tokenizer from data files: byte fallback, nothing normalized, nothing lost.

For demonstrations and tests; public checkpoints bring their own tokenizer. Deterministic: the same texts in the same
order give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from erniecore.api import DataError, UsageError
from erniecore.api.data import codes
from erniecore_text.tokenizer import SPACE_SYMBOL, SentencePieceTokenizer

#: Control tokens behind <unk> <s> </s>, in the order of their ids.
CONTROL = (
    "<|begin_of_sentence|>",
    "<|end_of_sentence|>",
    "<mask:1>",
    "<mask:4>",
    "<mask:5>",
    "<mask:6>",
    "<mask:7>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<response>",
    "</response>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tool_list>",
    "</tool_list>",
    "<system_setting>",
    "</system_setting>",
    "<global_setting>",
    "</global_setting>",
)
#: <unk> <s> </s>, special tokens and bytes: no vocabulary is smaller
MIN_SIZE = 3 + len(CONTROL) + 256
#: ids where nobody says how many, if the text has as many
USUAL_SIZE = 8000
#: SentencePiece ignores longer sentences, so texts are cut (between lines where possible)
_MAX_BYTES = 4000


class SizeError(DataError):
    """The text allows no vocabulary of this size; ``nearest`` is the size to try next (0: not known)."""

    nearest = 0


def train_nearest(texts: Callable[[], Iterable[str]], vocab_size: int = USUAL_SIZE) -> SentencePieceTokenizer:
    """As :func:`train`, with the nearest size that the text allows. ``texts`` gives the same texts every time."""
    size, tried = max(vocab_size, MIN_SIZE + 1), {0}
    while True:
        try:
            return train(texts(), size)
        except SizeError as error:
            tried.add(size)
            if error.nearest in tried:
                raise
            size = error.nearest


def train(texts: Iterable[str], vocab_size: int) -> SentencePieceTokenizer:
    """A BPE tokenizer over ``texts``.

    Raises:
        UsageError: ``vocab_size`` is below the special tokens and bytes.
        DataError: there is no text. SizeError: the text is too short for so many ids, or has more characters.
    """
    import sentencepiece

    if vocab_size <= MIN_SIZE:
        raise UsageError(
            "the vocabulary is too small",
            found=str(vocab_size),
            expected=f"at least {MIN_SIZE + 1}",
            where="--vocab-size",
        )
    out = io.BytesIO()
    sentences = _Counted(_sentences(texts))
    options: dict[str, Any] = {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "split_digits": True,
        "control_symbols": list(CONTROL),
        "unk_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "pad_id": -1,
        "max_sentence_length": _MAX_BYTES * 2,
        "num_threads": 1,
        "minloglevel": 2,
    }
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences, model_writer=out, vocab_size=vocab_size, **options
        )
    except (RuntimeError, OSError) as e:
        raise _explained(str(e), vocab_size, sentences.count) from e
    return SentencePieceTokenizer(out.getvalue())


class _Counted:
    def __init__(self, items: Iterator[str]) -> None:
        self._items, self.count = items, 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> str:
        item = next(self._items)
        self.count += 1
        return item


def _explained(message: str, vocab_size: int, count: int) -> DataError:
    if not count:
        return DataError("there is no text to train a tokenizer on", code=codes.NOTHING_LEFT)
    largest, smallest = re.search(r"<= (\d+)", message), re.search(r"vs (\d+)", message)
    expected, nearest = "a size that fits the text", 0
    if largest:
        expected, nearest = f"at most {largest[1]}", int(largest[1])
    elif smallest:
        nearest = int(smallest[1]) + 1
        expected = f"at least {nearest}: every character of the text gets an id"
    error = SizeError(
        "the vocabulary does not fit the text",
        code=codes.VOCABULARY_SIZE,
        where="--vocab-size",
        found=str(vocab_size),
        expected=expected,
        fix="choose another size, or give more text",
    )
    error.nearest = nearest
    return error


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Pieces that SentencePiece takes: no NUL, no placeholder of the space, not too long."""
    for text in texts:
        for block in re.split(r"(?<=\n)(?=[^\n])", text.replace("\0", "").replace(SPACE_SYMBOL, "")):
            for start in range(0, len(block), _MAX_BYTES // 4):
                piece = block[start : start + _MAX_BYTES // 4]
                if piece.strip():
                    yield piece


def read_texts(files: Iterable[Path]) -> Iterator[str]:
    """Every text of data files: each string value of JSON rows, each line of .txt files. Raises ``DataError``."""
    from erniecore.api.rows import read_rows

    for file in files:
        if file.name.endswith((".txt", ".txt.gz")):
            yield from _lines(file)
            continue
        for line, row in read_rows(file):
            if isinstance(row, DataError):
                row.where = f"{file}:{line} {row.where}".strip()
                raise row
            yield from _strings(row)


def _lines(file: Path) -> Iterator[str]:
    from erniecore.api.rows import open_bytes

    with open_bytes(file) as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as e:
                raise DataError(
                    "the line is not UTF-8", code=codes.BAD_UTF8, where=f"{file}:{number}", found=f"byte {e.start + 1}"
                ) from e


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
