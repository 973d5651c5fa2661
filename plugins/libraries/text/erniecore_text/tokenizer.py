"""The SentencePiece tokenizer of ERNIE 4.5: text and template segments to ids, and back.

Control tokens are found in trusted text only; users' text is never encoded as one. Reading and writing of the files
beside ``tokenizer.model`` is ``tokenizer_files.py``, decoding is ``detokenize.py``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from erniecore.api import EnvironmentFault
from erniecore.api.model import ChatTemplate, Segment
from erniecore_text import tokenizer_files
from erniecore_text.detokenize import TextStream, piece_bytes
from erniecore_text.word_encoding import WordEncoder, word_encoder

#: SentencePiece's placeholder of the space; as a character of a text it is spelled in bytes, so that it survives.
SPACE_SYMBOL = "\u2581"

#: A part of a run: plain text, or the id of a special token; and the segment that it starts in.
_Part = tuple["str | int", int]
#: trusted texts whose special tokens are remembered, and the longest of them
_MAX_TRUSTED, _MAX_LENGTH = 1 << 12, 1 << 10


class SentencePieceTokenizer:
    """See ``erniecore.api.Tokenizer``. Picklable; encoding is pure.

    Args:
        model: bytes of ``tokenizer.model``.
        files: what stands beside it (added tokens, settings).
        chat_template: renders conversations; ``None``: only plain text.

    Raises:
        EnvironmentFault: the model cannot be read, or padding and end token are the same.
    """

    def __init__(
        self,
        model: bytes,
        files: tokenizer_files.TokenizerFiles | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        self.model, self.files = model, files or tokenizer_files.TokenizerFiles()
        self.chat_template = chat_template
        self._known: dict[str, tuple[str | int, ...]] = {}
        self._sp = tokenizer_files.open_model(model)
        size: int = self._sp.get_piece_size()
        pieces = {self._sp.id_to_piece(i): i for i in range(size)}
        control = {p: i for p, i in pieces.items() if self._sp.is_control(i) or self._sp.is_unknown(i)}
        plain: dict[str, int] = {}
        for text, (token, special) in self.files.resolve(pieces).items():
            (control if special or text in control else plain)[text] = token
        self.special_tokens: Mapping[str, int] = dict(sorted(control.items(), key=lambda item: item[1]))
        self.plain_tokens: Mapping[str, int] = plain
        self.vocab_size: int = max(size, *(i + 1 for i in (*control.values(), *plain.values())))
        named = self.files.named
        self.bos_id = self._named(named.get("bos_token", ""), self._sp.bos_id())
        self.eos_id = self._named(named.get("eos_token", ""), self._sp.eos_id())
        self.pad_id = self._named(named.get("pad_token", ""), self._sp.pad_id(), self._sp.unk_id())
        if self.pad_id == self.eos_id:
            raise EnvironmentFault(
                "the tokenizer pads with its end token, so the model would never learn to stop",
                where="tokenizer_config.json: pad_token",
                found=named.get("pad_token", ""),
                fix="name another pad token, such as <unk>",
            )

    @classmethod
    def from_directory(cls, directory: Path, chat_template: ChatTemplate | None = None) -> SentencePieceTokenizer:
        """The tokenizer in a model directory of the Hugging Face format.

        Without ``chat_template`` the one in the directory is used, if there is one.

        Raises:
            EnvironmentFault: there is no ``tokenizer.model``, or its companions are not what they should be.
        """
        model, files = tokenizer_files.read(Path(directory))
        return cls(model, files, chat_template or tokenizer_files.read_template(Path(directory), files))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.files, self.chat_template)

    def __len__(self) -> int:
        return self.vocab_size

    def _named(self, name: str, *otherwise: int) -> int:
        if name in self.special_tokens:
            return int(self.special_tokens[name])
        return next((int(i) for i in otherwise if i >= 0), 0)

    # ---- encoding

    def encode(self, text: str) -> list[int]:
        """Plain text; never yields a special token, whatever the text says.

        Raises ``UnicodeEncodeError`` for lone surrogates: they are no text."""
        if self._breaks is None or not (SPACE_SYMBOL in text or (self._listed and self._listed.search(text))):
            return self._pieces(text)
        ids: list[int] = []
        position = 0
        for match in self._breaks.finditer(text):
            found = match[0]
            if found == SPACE_SYMBOL:
                ids += self._pieces(text[position : match.start()]) + self._space_symbol_ids
            elif found in self.plain_tokens:
                ids += [*self._pieces(text[position : match.start()]), self.plain_tokens[found]]
            else:  # a special token that SentencePiece would recognize: cut it in two
                ids += self._pieces(text[position : match.start() + 1]) + self._pieces(found[1:])
            position = match.end()
        return ids + self._pieces(text[position:]) if position else self._pieces(text)

    def _pieces(self, text: str) -> list[int]:
        try:
            return self._words.encode(text) if self._words is not None else self._sp.encode(text)
        except RuntimeError:
            text.encode()  # says better what is wrong
            raise

    @cached_property
    def _words(self) -> WordEncoder | None:
        """By words, where that gives the same ids; the space's placeholder in a text must not reach it."""
        return word_encoder(self._sp, self.model) if self._space_symbol_ids else None

    @cached_property
    def _breaks(self) -> re.Pattern[str] | None:
        """Where plain text must be cut before SentencePiece sees it."""
        return _any_of([*self._cut_texts(), SPACE_SYMBOL] if self._space_symbol_ids else self._cut_texts())

    @cached_property
    def _listed(self) -> re.Pattern[str] | None:
        """``_breaks`` without the placeholder of the space, which is found faster by itself."""
        return _any_of(self._cut_texts())

    def _cut_texts(self) -> list[str]:
        words = [t for t, i in self.special_tokens.items() if i < self._sp.get_piece_size() and self._matches(i)]
        return [*words, *self.plain_tokens]

    def _matches(self, token: int) -> bool:
        """Whether SentencePiece itself makes this id of its text."""
        return not (self._sp.is_control(token) or self._sp.is_unknown(token) or self._sp.is_byte(token))

    @cached_property
    def _space_symbol_ids(self) -> list[int]:
        ids = [self._sp.piece_to_id(f"<0x{b:02X}>") for b in SPACE_SYMBOL.encode()]
        return ids if all(self._sp.is_byte(i) for i in ids) else []

    @cached_property
    def _control(self) -> re.Pattern[str] | None:
        return _any_of(self.special_tokens)

    def encode_segments(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Ids per segment. Adjacent segments form one run unless ``generated`` changes between them; a token that
        spans two segments counts to the one in which it starts."""
        out: list[list[int]] = [[] for _ in segments]
        run: list[_Part] = []
        generated = False
        for i, segment in enumerate(segments):
            if segment.generated != generated:
                self._encode_run(run, out)
                run, generated = [], segment.generated
            if segment.trusted:
                run += [(part, i) for part in self._trusted(segment.text)]
            else:
                run.append((segment.text, i))
        self._encode_run(run, out)
        return out

    def _trusted(self, text: str) -> tuple[str | int, ...]:
        """Text between special tokens, and the ids of these. Templates write the same again and again."""
        parts = self._known.get(text)
        if parts is None:
            parts = self._cut_at_control(text)
            if len(text) <= _MAX_LENGTH:
                if len(self._known) >= _MAX_TRUSTED:
                    self._known.clear()
                self._known[text] = parts
        return parts

    def _cut_at_control(self, text: str) -> tuple[str | int, ...]:
        if self._control is None:
            return (text,)
        parts: list[str | int] = []
        position = 0
        for match in self._control.finditer(text):
            if match.start() > position:
                parts.append(text[position : match.start()])
            parts.append(self.special_tokens[match[0]])
            position = match.end()
        if position < len(text):
            parts.append(text[position:])
        return tuple(parts)

    def _encode_run(self, run: Sequence[_Part], out: list[list[int]]) -> None:
        """Encode texts between special tokens as one, and assign the ids to the segments."""
        texts: list[tuple[str, int]] = []
        for value, index in run:
            if isinstance(value, str):
                texts.append((value, index))
                continue
            self._assign(texts, out)
            texts = []
            out[index].append(value)
        self._assign(texts, out)

    def _assign(self, texts: Sequence[tuple[str, int]], out: list[list[int]]) -> None:
        if not texts:
            return
        if len(texts) == 1:
            out[texts[0][1]] += self.encode(texts[0][0])
            return
        ids = self.encode("".join([text for text, _ in texts]))
        starts = list(accumulate(map(self._sizes.__getitem__, ids), initial=0))
        ends = list(accumulate([len(text) if text.isascii() else len(text.encode()) for text, _ in texts]))
        # a model that normalizes or adds a space: its ids do not spell the text; count from the right
        beyond = starts[-1] - ends[-1]
        # tokens in front of each end; the last text has the rest
        cuts = [0, *(bisect_left(starts, end + beyond, 0, len(ids)) for end in ends[:-1]), len(ids)]
        for (_, index), (start, end) in zip(texts, pairwise(cuts), strict=True):
            out[index] += ids[start:end]

    # ---- decoding

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """Bytes that each id spells; special tokens spell their own text."""
        table = piece_bytes(self._sp, self.vocab_size)
        for text, token in (*self.special_tokens.items(), *self.plain_tokens.items()):
            table[token] = text.encode()
        return table

    @cached_property
    def _sizes(self) -> list[int]:
        """How many bytes each id spells."""
        return [len(text) for text in self.token_bytes]

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special_tokens.values())

    def stream(self, *, skip_special: bool = True) -> TextStream:
        """A decoder for ids that arrive one by one; its texts joined equal ``decode`` of all ids."""
        return TextStream(self.token_bytes, self._special_ids, skip_special=skip_special)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ids; incomplete UTF-8 and ids beyond the vocabulary become U+FFFD."""
        stream = self.stream(skip_special=skip_special)
        return stream.push(*(int(i) for i in ids)) + stream.finish()

    # ---- files

    def save(self, directory: Path) -> list[Path]:
        """Write the tokenizer files of the Hugging Face format (the names are in ``tokenizer_files``)."""
        return tokenizer_files.write(self, Path(directory))


def _any_of(words: Sequence[str] | Mapping[str, int]) -> re.Pattern[str] | None:
    """Longest first, so that a token is not found inside a longer one."""
    ordered = sorted(set(words), key=lambda w: (-len(w), w))
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
