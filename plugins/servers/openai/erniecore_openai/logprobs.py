"""Log-probabilities in the two forms of OpenAI's interface.

A token's text is what it adds to a text, its leading space included; bytes that are no character by themselves are U+FFFD,
and ``bytes`` is null for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from erniecore_generation.completions import REPLACEMENT
from erniecore_generation.engine.requests import TokenLogprob

from erniecore.api import Json
from erniecore.api.model import Tokenizer


class TokenTexts:
    """Texts of single tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before = tokenizer.encode("a")
        self._skip = len(tokenizer.decode(self._before, skip_special=False))
        self.of = lru_cache(maxsize=1 << 16)(self._of)

    def _of(self, token: int) -> str:
        # behind another token, as the decoder drops the space in front of the first
        return self._tokenizer.decode([*self._before, token], skip_special=False)[self._skip :]


def chat_logprobs(texts: TokenTexts, entries: Sequence[TokenLogprob]) -> list[Json]:
    """``choices[].logprobs.content`` of chat completions."""

    def told(token: int, logprob: float) -> Json:
        text = texts.of(token)
        return {"token": text, "logprob": logprob, "bytes": None if REPLACEMENT in text else list(text.encode())}

    return [
        {**told(entry.token, entry.logprob), "top_logprobs": [told(token, value) for token, value in entry.top]}
        for entry in entries
    ]


class CompletionLogprobs:
    """``choices[].logprobs`` of completions, for one choice: lists with one entry per token."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts, self._offset = texts, 0

    def told(self, ids: Sequence[int], entries: Sequence[TokenLogprob | None]) -> Json:
        """The next tokens; an entry is None for the first token of a prompt, which follows nothing."""
        tokens = [self._texts.of(token) for token in ids]
        offsets = []
        for text in tokens:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [None if entry is None else entry.logprob for entry in entries],
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """By text; of tokens with the same text the most likely one, and the token itself always."""
        found: dict[str, float] = {}
        for token, value in entry.top:
            found.setdefault(self._texts.of(token), value)
        if found:
            found.setdefault(self._texts.of(entry.token), entry.logprob)
        return found
