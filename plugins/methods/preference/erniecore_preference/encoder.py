"""Records to samples: the two completions of a pair share their prompt, rated completions stand alone. numpy only.

A pair is one sample, [shared | chosen | rejected]. ``shared`` is the prompt but its last token, which each completion
repeats, because it predicts the first token of both: the prompt is computed once, both completions see it and not each
other, and both start at the same position. With P prompt tokens and completions of C and R tokens that makes
P - 1 + C + R positions. Further per-token fields: ``sample`` is 1 at the first token; ``completion`` is CHOSEN where a
preferred (or desirable) completion is predicted, REJECTED for the other kind, 0 before; ``margin`` is the row's margin;
``media`` a hash of the sample's images, where the chat template reads any. Images stand in the prompt, so that both
completions share them. Rows that are too long are shortened as ``data.too_long`` says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from erniecore_text import (
    COMPLETION_CUT,
    PROMPT_CUT,
    EncodedCompletion,
    Prompts,
    TurnEncoder,
    beginning,
    cut_turn,
    shortened,
)

from erniecore.api import RowError
from erniecore.api.data import MediaReader, Message, Preference, UnpairedPreference
from erniecore.api.method import Origin, Record, Sample, Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

MISSING, BAD_VALUE, TOO_LONG, SAME_COMPLETIONS = "ERN-D030", "ERN-D036", "ERN-D044", "ERN-D049"
CHOSEN, REJECTED = 1, 2


class PairEncoder:
    """See ``erniecore.api.Encoder``.

    Args:
        tokenizer: with a chat template. max_length: tokens of a sample at most.
        margin: keep the rows' margins, and refuse rows without one.
        too_long: what becomes of longer rows. ``drop``; ``turns``: without the earliest turns of the prompt, texts stay whole;
            ``truncate``: then the last question is cut at its start, down to a quarter of the sample, then both completions at
            their ends, to the same length.
    """

    accepts: tuple[type, ...] = (Preference,)
    #: whether completions may be cut
    cuts_completions = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        *,
        margin: bool = False,
        too_long: str = "turns",
    ) -> None:
        self.turns, self.max_length, self.margin, self.too_long = TurnEncoder(tokenizer), max_length, margin, too_long
        template = self.turns.template
        self.media = template if isinstance(template, MediaReader) else None

    def expect(self, record: Record) -> None:
        """:meth:`encode` is going to be called for ``record``."""
        if isinstance(record, Preference):
            prompt = [replace(m, learn=False) for m in record.prompt]
            for completion in (record.chosen, record.rejected):
                self.turns.expect([*prompt, *completion], record.tools)

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample.

        Raises:
            RowError: equal completions, completions that do not fit, a margin that is missing, and what ``TurnEncoder`` refuses.
        """
        assert isinstance(record, Preference)
        margin = _margin(record) if self.margin else None
        size = 0
        for prompt, why in prompts(record.prompt, self.too_long, self.max_length):
            pair = self._completions(prompt, record)
            if (pair[0].prompt, pair[0].ids) == (pair[1].prompt, pair[1].ids):
                raise RowError(
                    "the preferred and the rejected completion are the same",
                    code=SAME_COMPLETIONS,
                    where="$.rejected",
                    fix="remove the row, there is nothing to prefer",
                )
            size = _size(*pair)
            if size <= self.max_length:
                return [self._sample(*pair, prompt, why, margin, record)]
            if self.too_long == "truncate" and sum(m.role == "user" for m in prompt) == 1:
                cut = self._cut(prompt, pair, record)
                if cut is not None:
                    return [self._sample(*cut[0], prompt, ", ".join(filter(None, [why, cut[1]])), margin, record)]
        raise self._refused("the two completions with the last question alone are too long", size)

    def _completions(
        self, prompt: Sequence[Message], record: Preference
    ) -> tuple[EncodedCompletion, EncodedCompletion]:
        chosen = self.turns.encode_completion(prompt, record.chosen, record.tools, "$.chosen")
        return chosen, self.turns.encode_completion(prompt, record.rejected, record.tools, "$.rejected")

    def _cut(
        self, prompt: Sequence[Message], pair: tuple[EncodedCompletion, EncodedCompletion], record: Preference
    ) -> tuple[tuple[EncodedCompletion, EncodedCompletion], str] | None:
        """As much of question and completions as fits; None where the cut completions would be alike, or nothing fits."""
        completions = sum(len(completion.ids) for completion in pair)
        forms = Prompts(
            prompt,
            lambda messages: max(len(a.prompt) for a in self._completions(messages, record)),
            self.max_length + 1,
            self.turns.tokenizer,
        )
        if self.cuts_completions:
            fitting = forms.beside(completions, question_first=True)
        else:
            fitting = forms.within(self.max_length + 1 - completions)
        if fitting is None:
            return None
        pair, why = self._completions(fitting, record), [] if fitting is prompt else [PROMPT_CUT]
        over = _size(*pair) - self.max_length
        if over > 0:
            first, second = (len(completion.ids) for completion in pair)
            half = (first + second - over) // 2
            count = max(half, first + second - over - min(first, second))  # a short completion stays whole
            if half < 1:
                return None
            pair, why = (beginning(pair[0], count), beginning(pair[1], count)), [*why, COMPLETION_CUT]
        return None if pair[0].ids == pair[1].ids else (pair, ", ".join(why))

    def _sample(
        self,
        chosen: EncodedCompletion,
        rejected: EncodedCompletion,
        prompt: Sequence[Message],
        why: str,
        margin: float | None,
        record: Preference,
    ) -> Sample:
        """K columns are shared; C and R belong to one completion. ``prompt``: which images there are."""
        K = _shared(chosen.prompt, rejected.prompt)
        a, b = (self.turns.arrays(completion) for completion in (chosen, rejected))
        C, R = chosen.size - K, rejected.size - K
        n = K + C + R
        fields: dict[str, NDArray[np.generic]] = {
            "sample": (np.arange(n) == 0).astype(np.int8),
            "completion": np.repeat([0, CHOSEN, REJECTED], [K, C, R]).astype(np.int8),
        }
        if margin is not None:
            fields["margin"] = np.full(n, margin, np.float32)
        media: tuple[str, ...] = ()
        if self.media is not None:
            media, again = (self.media.references(prompt, side.prompt) for side in (chosen, rejected))
            media += again[len(self.media.references(prompt, chosen.prompt[:K])) :]
            fields["media"] = media_hash(media, n)
        return Sample(
            input_ids=np.concatenate([a[0], b[0][K:]]),
            labels=np.concatenate([a[1], b[1][K:]]),
            position_ids=np.concatenate([np.arange(K + C), np.arange(K, K + R)]).astype(np.int64),
            end_rows=np.repeat([n, K + C, n], [K, C, R]).astype(np.int32),
            fields=fields,
            truncated=why,
            origin=record.origin,
            parts=(("prompt", K), ("chosen", C), ("rejected", R)),
            media=media,
        )

    def _refused(self, message: str, size: int) -> RowError:
        raising = "raise data.max_seq_len"
        return RowError(
            message if self.too_long == "turns" else "the row is too long",
            code=TOO_LONG,
            where="$",
            found=f"{size} tokens",
            expected=f"at most {self.max_length} (data.max_seq_len)",
            fix=raising if self.too_long == "truncate" else f"set data.too_long=truncate, or {raising}",
        )


class RatedEncoder(PairEncoder):
    """Conversations whose last completion is desirable or not; all before it is its prompt."""

    accepts: tuple[type, ...] = (UnpairedPreference,)

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample. Raises ``RowError`` for a completion that does not fit, and for what ``TurnEncoder`` refuses."""
        assert isinstance(record, UnpairedPreference)
        size = 0

        def completed(prompt: Sequence[Message]) -> EncodedCompletion:
            return self.turns.encode_completion(prompt, record.messages[-1:], record.tools, "$.messages[-1:]")

        for prompt, why in prompts(record.messages[:-1], self.too_long, self.max_length):
            completion = completed(prompt)
            size = completion.size
            if size <= self.max_length:
                return [self._rated(completion, prompt, why, record)]
            if self.too_long == "truncate" and sum(m.role == "user" for m in prompt) == 1:
                cut = cut_turn(prompt, completed, self.max_length + 1, self.turns.tokenizer, question_first=True)
                if cut is not None:
                    return [self._rated(cut[0], prompt, ", ".join(filter(None, [why, cut[1]])), record)]
        raise self._refused("the completion with the last question alone is too long", size)

    def _rated(
        self, completion: EncodedCompletion, prompt: Sequence[Message], why: str, record: UnpairedPreference
    ) -> Sample:
        side = CHOSEN if record.desirable else REJECTED
        sample = completion_sample(self.turns, completion, side, why, record.origin)
        shared, name = len(completion.prompt) - 1, "desirable" if record.desirable else "undesirable"
        sample = replace(sample, parts=(("prompt", shared), (name, len(sample) - shared)))
        if self.media is None:
            return sample
        media = self.media.references(prompt, completion.prompt)
        return replace(sample, media=media, fields={**sample.fields, "media": media_hash(media, len(sample))})


def media_hash(media: Sequence[str], count: int) -> NDArray[np.int64]:
    """int64 [count]: what tells apart samples of equal tokens and other images; 0 without images."""
    digest = hashlib.blake2b("\0".join(media).encode(), digest_size=8).digest()
    return np.full(count, int.from_bytes(digest, "little", signed=True) if media else 0, np.int64)


def completion_sample(turns: TurnEncoder, completion: EncodedCompletion, side: int, why: str, origin: Origin) -> Sample:
    """One completion behind its prompt; ``side``: CHOSEN or REJECTED."""
    input_ids, labels = turns.arrays(completion)
    n = len(input_ids)
    return Sample(
        input_ids=input_ids,
        labels=labels,
        position_ids=np.arange(n, dtype=np.int64),
        end_rows=np.full(n, n, np.int32),
        fields={
            "sample": (np.arange(n) == 0).astype(np.int8),
            "completion": np.where(np.arange(n) < len(completion.prompt) - 1, 0, side).astype(np.int8),
        },
        truncated=why,
        origin=origin,
    )


def prompts(messages: Sequence[Message], too_long: str, most: int) -> Iterable[tuple[Sequence[Message], str]]:
    """A prompt and, unless rows are dropped, ever shorter ones with the reason (``erniecore_text.shortened``)."""
    return [(messages, "")] if too_long == "drop" else shortened(messages, most)


def _size(chosen: EncodedCompletion, rejected: EncodedCompletion) -> int:
    return chosen.size + rejected.size - _shared(chosen.prompt, rejected.prompt)


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Columns that both completions can share: where both prompts are alike, without the last token of either."""
    longest = min(len(a), len(b)) - 1
    return next((i for i in range(longest) if a[i] != b[i]), longest)


def _margin(record: Preference) -> float:
    if record.margin is None:
        raise RowError(
            "the row has no margin",
            code=MISSING,
            where="$.margin",
            expected="a positive number, because method.offset_alpha is not 0",
            fix="add `margin`, or set method.offset_alpha=0",
        )
    if not record.margin > 0:
        raise RowError(
            "the margin is not positive", code=BAD_VALUE, where="$.margin", found=f"{record.margin}", expected="> 0"
        )
    return record.margin
