"""Text generation for prompts and conversations: chat template, batching, stop strings and streaming around the decoding
loop.

Text in, text out; decoding of token ids is ``generate.py``, parsing of completions ``completions.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from erniecore.api import Json, UsageError
from erniecore.api.data import Message, ToolCall
from erniecore.api.model import Tokenizer
from erniecore_generation.batching import Pool
from erniecore_generation.completions import TextStream, parse_completion, prompt_ids
from erniecore_generation.generate import generating, stop_token_ids
from erniecore_generation.media import PromptMedia, check_media, media_of
from erniecore_generation.sampling import Sampling, SamplingOptions
from erniecore_generation.speculate import make_drafter

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: New tokens when nobody says how many (fewer when the context leaves less room).
DEFAULT_NEW_TOKENS = 256
Finish = Literal["stop", "stop-string", "length"]


@dataclass(frozen=True, slots=True)
class Completion:
    """The completion of one prompt.

    Attributes:
        text: everything before the stop token or stop string, with tags such as ``</think>``.
        content, reasoning, tool_calls: ``text``, parsed.
        ids: new tokens, a stop token included.
        finish_reason: ``stop`` a stop token, ``stop-string`` one of ``stop``, ``length`` no room left.
        prompt_tokens: tokens of the prompt.
        seconds: from the start of its prefill to its last token. first_token_seconds: to its first.
        draft_tokens, accepted_tokens: tokens proposed by speculative decoding, and those of them that were accepted.
    """

    text: str
    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    ids: tuple[int, ...]
    finish_reason: Finish
    prompt_tokens: int
    seconds: float
    draft_tokens: int = 0
    accepted_tokens: int = 0
    first_token_seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of this completion."""
        return len(self.ids) / self.seconds if self.seconds > 0 else 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Tokens of the prompt per second, to the first new token."""
        return self.prompt_tokens / self.first_token_seconds if self.first_token_seconds > 0 else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """New tokens per second after the first; 0 if there is no other."""
        seconds = self.seconds - self.first_token_seconds
        return (len(self.ids) - 1) / seconds if len(self.ids) > 1 and seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: list[int]
    thinking: bool = False
    media: PromptMedia | None = None


class _Row:
    """One completion in progress."""

    def __init__(self, prompt: _Prompt, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.prompt = prompt
        self.ids: list[int] = []
        self.stream = TextStream(tokenizer, stop)
        self.finish: Finish | None = None
        self.seconds = self.first_token_seconds = 0.0

    def push(self, token: int, stop_ids: Collection[int]) -> str:
        """Add one token; returns the text to show."""
        self.ids.append(token)
        if token in stop_ids:
            self.finish = "stop"
            return self.stream.close()
        chunk = self.stream.push(token)
        if self.stream.stopped:
            self.finish = "stop-string"
        return chunk

    def completion(self, draft_tokens: int, accepted_tokens: int) -> Completion:
        """The finished completion, parsed."""
        parsed = parse_completion(self.stream.text, thinking=self.prompt.thinking)
        return Completion(
            text=self.stream.text,
            content=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            ids=tuple(self.ids),
            finish_reason=self.finish or "length",
            prompt_tokens=len(self.prompt.ids),
            seconds=self.seconds,
            draft_tokens=draft_tokens,
            accepted_tokens=accepted_tokens,
            first_token_seconds=self.first_token_seconds,
        )


class Responder:
    """Generates completions with one model and tokenizer.

    Args:
        model: a ``CausalLM``.
        generation: content of ``generation_config.json``; only ``eos_token_id`` is read here.
        stop: strings that end a completion and are not part of it.
        speculative: drafter for speculative decoding, ``off``, ``lookup`` or ``mtp``; it does not change completions.
        thinking: whether completions of messages begin with reasoning; ``None``: as the chat template has it.
        ignore_eos: no token ends a completion.

    Raises:
        UsageError: the model has no such drafter, or a template that cannot be told.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        generation: Json | None = None,
        stop: Sequence[str] = (),
        speculative: str = "off",
        thinking: bool | None = None,
        ignore_eos: bool = False,
    ) -> None:
        self.model, self.tokenizer, self.stop = model, tokenizer, tuple(stop)
        self.thinking = thinking
        check_thinking(tokenizer, thinking)
        self.stop_ids = frozenset[int]() if ignore_eos else stop_token_ids(model, tokenizer, generation)
        self.drafter = make_drafter(model, speculative)

    def encode(self, prompt: str | Sequence[Message], tools: Sequence[Json] = ()) -> _Prompt:
        """A string is plain text; messages go through the chat template.

        Raises ``UsageError`` for images that the model does not read, ``RowError`` for those that cannot be read."""
        if isinstance(prompt, str):
            return _Prompt(self.tokenizer.encode(prompt))
        template = self.tokenizer.chat_template
        if template is None:
            raise UsageError("this model has no chat template", fix="give the prompt as plain text (--raw)")
        check_media(template, prompt)
        ids, thinking = prompt_ids(self.tokenizer, template, prompt, tools, self.thinking)
        return _Prompt(ids, thinking, media_of(template, prompt, ids))

    def room(self, prompt: _Prompt) -> int:
        """How many new tokens fit into the context, at most ``DEFAULT_NEW_TOKENS``; at least 1, so that a prompt that is too
        long is reported by the decoder."""
        limit = self.model.architecture.get("max_position_embeddings")
        return DEFAULT_NEW_TOKENS if limit is None else max(1, min(DEFAULT_NEW_TOKENS, int(limit) - len(prompt.ids)))

    def complete(
        self,
        prompts: Sequence[_Prompt],
        *,
        sampling: Sampling,
        max_new_tokens: int | None = None,
        streams: Sequence[int] | None = None,
        batch_size: int = 0,
        on_text: Callable[[int, str], None] | None = None,
    ) -> list[Completion]:
        """The completions of all prompts, in order; see :meth:`iter_completions`.

        Args:
            on_text: called with (index of the prompt, chunk) as soon as the chunk is safe to show.
        """
        options: Any = {"max_new_tokens": max_new_tokens, "streams": streams, "batch_size": batch_size}
        found = dict(self.iter_completions(prompts, sampling=sampling, on_text=on_text, **options))
        return [found[index] for index in range(len(prompts))]

    def iter_completions(
        self,
        prompts: Sequence[_Prompt],
        *,
        sampling: Sampling,
        max_new_tokens: int | None = None,
        streams: Sequence[int] | None = None,
        batch_size: int = 0,
        on_text: Callable[[int, str], None] | None = None,
    ) -> Iterator[tuple[int, Completion]]:
        """Yields (index of the prompt, completion) as completions finish.

        Args:
            streams: random stream of each prompt; default: its index.
            batch_size: sequences decoded together (continuous batching); 0: all.
            on_text: see :meth:`complete`.

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
            drafter=self.drafter,
            media=[prompt.media for prompt in prompts],
        )
        show = on_text or (lambda row, chunk: None)
        with generating(self.model):
            for chosen in pool.run():
                for index, token in zip(chosen.rows.tolist(), chosen.tokens.tolist(), strict=True):
                    row = rows[index]
                    if not row.ids:
                        row.first_token_seconds = time.perf_counter() - pool.started[index]
                    show(index, row.push(token, self.stop_ids))
                    if row.finish is not None:
                        pool.finish(index)
                    if not pool.live[index]:
                        show(index, row.stream.close())
                        row.seconds = time.perf_counter() - pool.started[index]
                        yield index, row.completion(int(pool.draft_tokens[index]), int(pool.accepted_tokens[index]))


def check_thinking(tokenizer: Tokenizer, thinking: bool | None) -> None:
    """Raise ``UsageError`` where a chat template asks for every completion in the same way."""
    template = tokenizer.chat_template
    if thinking is None or template is None:
        return
    with_it, without = (template.render([Message("user", "a")], thinking=t) for t in (True, False))
    if with_it == without:
        raise UsageError(
            "this model's chat template has no switch for reasoning",
            where="--thinking" if thinking else "--no-thinking",
            fix="leave the option out",
        )


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
    thinking: bool | None = None,
    ignore_eos: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> list[Completion]:
    """Generate completions: strings are plain text, messages go through the chat template.

    The result does not depend on ``batch_size`` beyond rounding: prompt i always uses random stream i.

    Args:
        max_new_tokens: per completion; ``None``: 256 or what the context leaves.
        stop: strings that end a completion; not part of it.
        generation: content of ``generation_config.json``, for its ``eos_token_id``.
        batch_size: sequences decoded together (continuous batching).
        on_text: called with (index of the prompt, chunk of text).
        speculative: drafter for speculative decoding: ``off``, ``lookup`` or ``mtp``. It does not change completions.
        thinking: whether completions of messages begin with reasoning, for templates with a switch; ``None``: as they have it.
        ignore_eos: decode on after a token that ends a completion.
        sampling: see :class:`~erniecore_generation.sampling.Sampling`; greedy by default.

    Raises:
        UsageError: an empty or too long prompt, messages without a template, a sampling value out of range.
    """
    options: Any = {"stop": stop, "speculative": speculative, "thinking": thinking, "ignore_eos": ignore_eos}
    responder = Responder(model, tokenizer, generation=generation, **options)
    chosen = Sampling(**sampling)
    encoded = [responder.encode(prompt, tools) for prompt in prompts]
    for index, prompt in enumerate(encoded):
        if not prompt.ids:
            raise UsageError("the prompt is empty", where=f"prompt {index}")
    return responder.complete(
        encoded, sampling=chosen, max_new_tokens=max_new_tokens, batch_size=batch_size, on_text=on_text
    )
