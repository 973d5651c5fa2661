"""Answers to prompts and conversations: template, batching, stop strings and streaming around the decoding loop.

Text in, text out; the loop over ids is ``generate.py``, taking answers apart is ``answers.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from erniecore.engine.generation.answers import TextStream, parse_answer, prompt_ids
from erniecore.engine.generation.batching import Pool
from erniecore.engine.generation.generate import evaluating, stop_token_ids
from erniecore.engine.generation.sampling import Sampling, SamplingOptions
from erniecore.engine.generation.speculate import guesser_of
from erniecore.errors import UsageError
from erniecore.types import Json, Message, Tokenizer, ToolCall

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: New tokens when nobody says how many (fewer when the context leaves less room).
DEFAULT_NEW_TOKENS = 256
Finish = Literal["stop", "stop-string", "length"]


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        text: everything before the stop token or stop string, with tags such as ``</think>``.
        content, reasoning, tool_calls: ``text`` taken apart.
        ids: new tokens, a stop token included.
        finish_reason: ``stop`` a stop token, ``stop-string`` one of ``stop``, ``length`` no room left.
        prompt_tokens: tokens of the prompt.
        seconds: from when its prompt was read to its end.
        guessed, right: tokens that were guessed ahead, and those among them that the model chose.
    """

    text: str
    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    ids: tuple[int, ...]
    finish_reason: Finish
    prompt_tokens: int
    seconds: float
    guessed: int = 0
    right: int = 0

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of this answer."""
        return len(self.ids) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: list[int]
    thinking: bool = False


class _Row:
    """One answer while it grows."""

    def __init__(self, prompt: _Prompt, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.prompt = prompt
        self.ids: list[int] = []
        self.stream = TextStream(tokenizer, stop)
        self.finish: Finish | None = None
        self.seconds = 0.0

    def push(self, token: int, stop_ids: Collection[int]) -> str:
        """One more token; the text to show."""
        self.ids.append(token)
        if token in stop_ids:
            self.finish = "stop"
            return self.stream.close()
        piece = self.stream.push(token)
        if self.stream.stopped:
            self.finish = "stop-string"
        return piece

    def completion(self, guessed: int, right: int) -> Completion:
        """The finished answer."""
        answer = parse_answer(self.stream.text, thinking=self.prompt.thinking)
        return Completion(
            text=self.stream.text,
            content=answer.content,
            reasoning=answer.reasoning,
            tool_calls=answer.tool_calls,
            ids=tuple(self.ids),
            finish_reason=self.finish or "length",
            prompt_tokens=len(self.prompt.ids),
            seconds=self.seconds,
            guessed=guessed,
            right=right,
        )


class Responder:
    """Answers prompts with one model and tokenizer.

    Args:
        model: a ``CausalLM``.
        generation: content of ``generation_config.json``; only ``eos_token_id`` is read here.
        stop: strings that end an answer and are not part of it.
        speculative: how tokens are guessed ahead, ``off``, ``lookup`` or ``mtp``; answers are the same.

    Raises:
        UsageError: the model cannot guess in that way.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        generation: Json | None = None,
        stop: Sequence[str] = (),
        speculative: str = "off",
    ) -> None:
        self.model, self.tokenizer, self.stop = model, tokenizer, tuple(stop)
        self.stop_ids = stop_token_ids(model, tokenizer, generation)
        self.guesser = guesser_of(model, speculative)

    def encode(self, prompt: str | Sequence[Message], tools: Sequence[Json] = ()) -> _Prompt:
        """A string is plain text; messages go through the chat template."""
        if isinstance(prompt, str):
            return _Prompt(self.tokenizer.encode(prompt))
        if self.tokenizer.chat_template is None:
            raise UsageError("this model has no chat template", fix="give the prompt as plain text (--raw)")
        return _Prompt(*prompt_ids(self.tokenizer, self.tokenizer.chat_template, prompt, tools))

    def room(self, prompt: _Prompt) -> int:
        """How many new tokens an answer may have (at least 1, to let it complain)."""
        limit = self.model.architecture.get("max_position_embeddings")
        return DEFAULT_NEW_TOKENS if limit is None else max(1, min(DEFAULT_NEW_TOKENS, int(limit) - len(prompt.ids)))

    def answer(
        self,
        prompts: Sequence[_Prompt],
        *,
        sampling: Sampling,
        max_new_tokens: int | None = None,
        streams: Sequence[int] | None = None,
        batch_size: int = 0,
        on_text: Callable[[int, str], None] | None = None,
    ) -> list[Completion]:
        """Answer prompts; see :meth:`answers`.

        Args:
            on_text: called with (row, piece) as soon as the piece is safe to show.
        """
        options: Any = {"max_new_tokens": max_new_tokens, "streams": streams, "batch_size": batch_size}
        found = dict(self.answers(prompts, sampling=sampling, on_text=on_text, **options))
        return [found[index] for index in range(len(prompts))]

    def answers(
        self,
        prompts: Sequence[_Prompt],
        *,
        sampling: Sampling,
        max_new_tokens: int | None = None,
        streams: Sequence[int] | None = None,
        batch_size: int = 0,
        on_text: Callable[[int, str], None] | None = None,
    ) -> Iterator[tuple[int, Completion]]:
        """Answer prompts; (index, answer) in the order in which answers end.

        Args:
            streams: random stream of each prompt; default: its index.
            batch_size: answers that grow together; as some end, others begin. 0: all.
            on_text: see :meth:`answer`.

        Raises:
            UsageError: a prompt that is empty or leaves no room, before any work. NumericsError: logits not finite.
        """
        rows = [_Row(prompt, self.tokenizer, self.stop) for prompt in prompts]
        pool = Pool(
            self.model,
            [prompt.ids for prompt in prompts],
            sampling=sampling,
            max_new_tokens=[self.room(p) if max_new_tokens is None else max_new_tokens for p in prompts],
            stop_ids=self.stop_ids,
            pad_id=self.tokenizer.pad_id,
            streams=streams,
            slots=batch_size,
            guesser=self.guesser,
        )
        show = on_text or (lambda row, piece: None)
        with evaluating(self.model):
            for chosen in pool.run():
                for index, token in zip(chosen.rows.tolist(), chosen.tokens.tolist(), strict=True):
                    row = rows[index]
                    show(index, row.push(token, self.stop_ids))
                    if row.finish is not None:
                        pool.finish(index)
                    if not pool.live[index]:
                        show(index, row.stream.close())
                        row.seconds = time.perf_counter() - pool.started[index]
                        yield index, row.completion(int(pool.guessed[index]), int(pool.right[index]))


def generate_text(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[Message]],
    *,
    max_new_tokens: int | None = None,
    stop: Sequence[str] = (),
    tools: Sequence[Json] = (),
    generation: Json | None = None,
    batch_size: int = 8,
    on_text: Callable[[int, str], None] | None = None,
    speculative: str = "off",
    **sampling: Unpack[SamplingOptions],
) -> list[Completion]:
    """Answer prompts: strings as plain text, messages through the chat template.

    The result does not depend on ``batch_size`` beyond rounding: row i always draws from random stream i.

    Args:
        max_new_tokens: per answer; ``None``: 256 or what the context leaves.
        stop: strings that end an answer; not part of it.
        generation: content of ``generation_config.json``, for its ``eos_token_id``.
        batch_size: answers that grow together; as some end, others begin.
        on_text: called with (index of the prompt, piece of text).
        speculative: guess tokens ahead to be faster: ``off``, ``lookup`` or ``mtp``. The answers are the same.
        sampling: see :class:`~erniecore.engine.generation.sampling.Sampling`; greedy by default.

    Raises:
        UsageError: an empty or too long prompt, messages without a template, a sampling value out of range.
    """
    responder = Responder(model, tokenizer, generation=generation, stop=stop, speculative=speculative)
    chosen = Sampling(**sampling)
    encoded = [responder.encode(prompt, tools) for prompt in prompts]
    for index, prompt in enumerate(encoded):
        if not prompt.ids:
            raise UsageError("the prompt is empty", where=f"prompt {index}")
    return responder.answer(
        encoded, sampling=chosen, max_new_tokens=max_new_tokens, batch_size=batch_size, on_text=on_text
    )
