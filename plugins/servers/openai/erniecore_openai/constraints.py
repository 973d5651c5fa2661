"""Constraints of completions: which tokens may come next so that the text keeps to a grammar, computed by llguidance.

A constraint follows the tokens of one completion only, so it changes nothing for the others, and nothing depends on how tokens
are drafted or in which chunks they are sent. Where the completion begins inside of the reasoning, the grammar holds from behind
``</think>`` on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from erniecore_generation.completions import hidden_ids
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from erniecore.api import UsageError
from erniecore.api.model import Tokenizer
from erniecore_openai.grammars import BadGrammar

#: Behind this the answer begins, and a tool call.
_THOUGHT = b"</think>"
CALL = b"<tool_call>"


@runtime_checkable
class SpelledTokenizer(Protocol):
    """A tokenizer that tells the bytes of every token; special ones spell their own text."""

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """What each id spells."""
        ...


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar of llguidance, and the state before the first token of its texts, which whoever follows one copies."""

    text: str
    matcher: LLMatcher


@dataclass(frozen=True, slots=True)
class GrammarForm:
    """What makes a :class:`GrammarConstraint`, as plain data: other processes with the same vocabulary make the same one.

    Attributes:
        grammar: text. stop_ids, thinking, trigger, once: as the constraint has them.
    """

    grammar: str
    stop_ids: tuple[int, ...]
    thinking: bool
    trigger: str
    once: bool


class Vocabulary:
    """What constraints need to know of a model's tokens; made when the first one asks, which takes a moment.

    Args:
        vocab_size: rows of the model's output; ids behind those of the tokenizer are never allowed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self.size = tokenizer, vocab_size
        self._crossing: dict[bytes, list[NDArray[np.int64]]] = {}

    @cached_property
    def special(self) -> list[int]:
        """Ids of special tokens."""
        return sorted(token for token in self._tokenizer.special_tokens.values() if token < self.size)

    @cached_property
    def spelled(self) -> list[bytes]:
        """What each token adds to the text; nothing for special tokens that are not shown."""
        if not isinstance(self._tokenizer, SpelledTokenizer):
            raise UsageError(
                "this model's tokenizer does not tell what its tokens spell, so no completion can be constrained"
            )
        hidden, found = hidden_ids(self._tokenizer), list(self._tokenizer.token_bytes[: self.size])
        found += [b""] * (self.size - len(found))
        return [b"" if token in hidden else text for token, text in enumerate(found)]

    @cached_property
    def tokens(self) -> LLTokenizer:
        """For llguidance, which takes special tokens by their ids alone."""
        return LLTokenizer(_Spelling(self._tokenizer, self.spelled, self.special), n_vocab=self.size)  # type: ignore[arg-type]

    def crossing(self, marker: bytes) -> list[NDArray[np.int64]]:
        """For each length of a beginning of ``marker``: the tokens that write its rest and more. Without them it ends with a
        token, and the grammar sees all that comes behind it."""
        if marker not in self._crossing:
            rests = [marker[length:] for length in range(len(marker))]
            found = [
                [t for t, text in enumerate(self.spelled) if text.startswith(rest) and text != rest] for rest in rests
            ]
            inside = [t for t, text in enumerate(self.spelled) if marker in text and not text.endswith(marker)]
            self._crossing[marker] = [np.array(sorted({*tokens, *inside}), np.int64) for tokens in found]
        return self._crossing[marker]

    def grammar(self, text: str) -> Grammar:
        """A grammar for these tokens. Raises ``BadGrammar`` where it is too much, or nothing fits it."""
        matcher = LLMatcher(self.tokens, text, log_level=0)
        if matcher.is_error():
            raise BadGrammar(matcher.get_error().splitlines()[0])
        if not any(matcher.compute_bitmask()):
            raise BadGrammar("there is no text that fits")
        return Grammar(text, matcher)


class _Spelling:
    """A tokenizer as llguidance asks for it."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, spelled: Sequence[bytes], special: Sequence[int]) -> None:
        names = {token: text.encode() for text, token in tokenizer.special_tokens.items()}
        self.eos_token_id, self.bos_token_id = tokenizer.eos_id, tokenizer.bos_id
        self.tokens = [names.get(token, text) for token, text in enumerate(spelled)]
        self.special_token_ids = list(special)
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode(errors="replace"))


class GrammarConstraint:
    """A ``Constraint`` that keeps a completion to a grammar.

    Args:
        stop_ids: tokens that may end the completion where the grammar is satisfied.
        thinking: the completion begins inside of the reasoning, which is free.
        trigger: the grammar begins behind each of these, and what comes before and between is free. Empty: at once.
        once: the completion ends with the first text of the grammar.

    Attributes:
        form: all of it as plain data.
    """

    @classmethod
    def of(cls, vocabulary: Vocabulary, grammar: Grammar, form: GrammarForm) -> GrammarConstraint:
        """The constraint that has this ``form``, before the first token; ``grammar``: that of its text."""
        options = {"thinking": form.thinking, "once": form.once}
        return cls(vocabulary, grammar, frozenset(form.stop_ids), trigger=form.trigger.encode(), **options)

    def __init__(
        self, vocabulary: Vocabulary, grammar: Grammar, stop_ids: frozenset[int], *, thinking: bool = False,
        trigger: bytes = b"", once: bool = True,
    ) -> None:  # fmt: skip
        self._vocabulary, self._start, self._matcher = vocabulary, grammar.matcher, grammar.matcher.deep_copy()
        self.form = GrammarForm(grammar.text, tuple(sorted(stop_ids)), thinking, trigger.decode(), once)
        self._trigger, self._once = trigger, once
        self._stops = np.array(sorted(token for token in stop_ids if token < vocabulary.size), np.int64)
        # others are asked for by the client, and may end the reasoning too
        self._ends = self._stops[np.isin(self._stops, vocabulary.special)]
        self._eos = int(vocabulary.tokens.eos_token)
        #: what ends the free text, empty inside of the grammar; and the last of the text
        self._marker, self._tail = _THOUGHT if thinking else trigger, b""

    def allowed(self) -> NDArray[np.bool_]:
        """Bool [V]. Raises ``UsageError`` where llguidance gives up."""
        if self._marker:
            mask = np.ones(self._vocabulary.size, bool)
            if self._marker == _THOUGHT:
                mask[self._ends] = False
            for length, tokens in enumerate(self._vocabulary.crossing(self._marker)):
                if self._tail.endswith(self._marker[:length]):
                    mask[tokens] = False
            return mask
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        mask = np.unpackbits(bits, bitorder="little", count=self._vocabulary.size).astype(bool)
        mask[self._eos] = False
        if self._matcher.is_accepting():
            mask[self._stops] = True
        return mask

    def accept(self, token: int) -> None:
        """The next token. Raises ``ValueError`` for one that the grammar has no place for."""
        if self._marker:
            self._tail = (self._tail + self._vocabulary.spelled[token])[-len(self._marker) :]
            if self._tail == self._marker:
                self._marker, self._tail = self._trigger if self._marker == _THOUGHT else b"", b""
            return
        if not self._matcher.validate_tokens([token]):
            self._check()
            raise ValueError(f"token {token} has no place in the grammar")
        self._matcher.consume_token(token)
        if self._trigger and not self._once and self._matcher.is_stopped():
            self._marker, self._matcher = self._trigger, self._start.deep_copy()

    def done(self) -> bool:
        """Whether nothing can follow."""
        return not self._marker and self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError("the constraint is too much to compute", found=self._matcher.get_error().splitlines()[0])
