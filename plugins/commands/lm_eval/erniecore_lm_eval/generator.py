"""Completions of prompts by the serving engine, which gives each the same tokens in any company, up to strings that end them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from erniecore_generation.completions import TextStream, parse_completion
from erniecore_generation.engine.requests import Event, Failed, GenerationRequest, Tokens
from erniecore_generation.generate import stop_token_ids
from erniecore_generation.sampling import Sampling

from erniecore.api.model import ModelBundle
from erniecore_lm_eval.engines import put, running_engine

_END_OF_REASONING = "</think>"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is to be continued, and how.

    Attributes:
        stop: strings that end the completion; inside of reasoning they do not. thinking: the prompt has opened reasoning.
        stream: random stream.
    """

    ids: tuple[int, ...]
    stop: tuple[str, ...]
    max_new_tokens: int
    sampling: Sampling
    stream: int
    thinking: bool


class _Row:
    def __init__(self, prompt: Prompt, bundle: ModelBundle) -> None:
        assert bundle.tokenizer is not None
        self.prompt, self.stream = prompt, TextStream(bundle.tokenizer)
        self.ended = False

    def text(self) -> tuple[str, bool]:
        """(the answer so far, whether a stop string has ended it). Reasoning is left out."""
        whole = self.stream.text
        thinking = self.prompt.thinking or whole.lstrip().startswith("<think>")
        if thinking and _END_OF_REASONING not in whole:
            return "", False
        answer = parse_completion(whole, thinking=self.prompt.thinking).content if thinking else whole
        ends = [place for stop in self.prompt.stop if stop and (place := answer.find(stop)) >= 0]
        return (answer[: min(ends)], True) if ends else (answer, False)


def complete(bundle: ModelBundle, prompts: Sequence[Prompt], *, rows: int, context: int) -> Iterator[tuple[int, str]]:
    """(index of the prompt, its completion) as completions end; greedy or sampled, and free of reasoning.

    Args:
        rows: sequences that are decoded together. context: tokens of a prompt and its completion together.

    Raises:
        NumericsError: logits that are not finite. UsageError: a prompt without room.
    """
    assert bundle.tokenizer is not None
    stop_ids = frozenset(stop_token_ids(bundle.model, bundle.tokenizer, bundle.generation))
    events: SimpleQueue[tuple[int, Event]] = SimpleQueue()
    with running_engine(bundle, rows=rows, context=context, waiting=len(prompts)) as engine:
        tickets: list[Any] = []
        for index, prompt in enumerate(prompts):
            request = GenerationRequest(
                prompt.ids, prompt.sampling, prompt.max_new_tokens, stop_ids=stop_ids, stream=prompt.stream
            )
            tickets.append(engine.submit(request, partial(put, events, index)))
        found = [_Row(prompt, bundle) for prompt in prompts]
        left = len(prompts)
        while left:
            index, event = events.get()
            row = found[index]
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Tokens):
                for token in event.ids:
                    row.stream.push(token)
                if not row.ended and row.text()[1]:
                    row.ended = True
                    engine.cancel(tickets[index])
                continue
            row.stream.close()
            left -= 1
            yield index, row.text()[0]
