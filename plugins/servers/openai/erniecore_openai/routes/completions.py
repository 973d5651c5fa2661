"""``POST /v1/completions``: text is continued as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from erniecore_generation.engine.requests import GenerationRequest
from fastapi import APIRouter, Request

from erniecore.api import Json
from erniecore_openai.answers import Head, Usage, new_id
from erniecore_openai.description import STREAMED
from erniecore_openai.errors import ApiError
from erniecore_openai.generation import Generation
from erniecore_openai.logprobs import CompletionLogprobs, TokenTexts
from erniecore_openai.rendering import Prompt, sampling_of, stop_ids, text_prompts
from erniecore_openai.schemas.completions import CompletionRequest
from erniecore_openai.security import LimitedRoute
from erniecore_openai.state import ServedModel, Serving
from erniecore_openai.steering import Form, form_of
from erniecore_openai.streaming import sse, whole

router = APIRouter(route_class=LimitedRoute)


@router.post("/v1/completions", operation_id="create_completion", responses=dict(STREAMED))
async def create_completion(request: Request, asked: CompletionRequest) -> Any:
    """Continue one or several prompts."""
    serving: Serving = request.app.state.serving
    model = serving.model(asked.model)
    _check_choices(serving, len(asked.prompts) * asked.n)
    prompts = await serving.in_texts(text_prompts, model, asked.prompts)
    answer = _Answer(model, asked, prompts, await serving.in_texts(form_of, model, asked))
    echoed = await serving.in_texts(answer.echoes) if asked.echo else None
    generation = Generation(serving, model.name, answer.head.id, answer.requests(), asked.stops)
    generation.start()
    if asked.stream:
        return sse(answer.chunks(generation, echoed), generation, serving.settings.keep_alive_seconds)
    return await whole(request, generation, lambda: answer.collected(generation, echoed))


def _check_choices(serving: Serving, count: int) -> None:
    most = serving.settings.max_choices
    if count > most:
        raise ApiError(400, f"n: {count} completions in one request; at most {most} are taken", param="n")


class _Answer:
    """The answer to one request; its choices are ordered by prompt, then by ``n``."""

    def __init__(self, model: ServedModel, asked: CompletionRequest, prompts: list[Prompt], form: Form | None) -> None:
        self.model, self.asked, self.prompts, self.form = model, asked, prompts, form
        self.head = Head(new_id("cmpl"), "text_completion", model.name)
        self.usage = Usage(sum(len(prompt.ids) for prompt in prompts))
        self._texts = TokenTexts(model.tokenizer)
        self._logprobs = [CompletionLogprobs(self._texts) for _ in range(len(prompts) * asked.n)]

    def requests(self) -> list[GenerationRequest]:
        """What the engine is asked for, one request per completion."""
        asked, sampling, stops = self.asked, sampling_of(self.model, self.asked), stop_ids(self.model, self.asked)
        # of a prompt that is only repeated nobody asks for more than its tokens, which the engine takes as scoring
        scored = asked.logprobs if asked.logprobs is not None else (0 if asked.max_tokens == 0 else None)
        return [
            GenerationRequest(
                prompt.ids, sampling, asked.max_tokens, asked.min_tokens, stops, stream=index,
                logprobs=asked.logprobs, prompt_logprobs=scored if asked.echo else None,
                constraint=None if self.form is None else self.form.constraint(stops), adapter=self.model.adapter,
            )
            for index, prompt in enumerate(prompt for prompt in self.prompts for _ in range(asked.n))
        ]  # fmt: skip

    def echoes(self) -> list[str]:
        """The texts of the prompts."""
        texts = []
        for given, prompt in zip(self.asked.prompts, self.prompts, strict=True):
            decoded = (
                self.model.tokenizer.decode(prompt.ids, skip_special=False) if not isinstance(given, str) else given
            )
            texts.append(decoded)
        return texts

    async def chunks(self, generation: Generation, echoed: list[str] | None) -> AsyncIterator[Json]:
        """The choices piece by piece; texts of prompts come first."""
        for index in range(len(self._logprobs)) if echoed is not None else ():
            if self.asked.logprobs is None:
                yield self.head.json([_choice(index, (echoed or [])[index // self.asked.n], None, None)])
        begun: set[int] = set()
        async for piece in generation.pieces():
            self.usage.add(piece, piece.index // self.asked.n)
            first = bool(piece.ids) and piece.index not in begun  # told at once, even if it is a part of a character
            begun |= {piece.index} if piece.ids else set()
            text, told = piece.text, None
            if self.asked.logprobs is not None and piece.prompt is not None:
                prompt = self.prompts[piece.index // self.asked.n]
                text = (echoed or [])[piece.index // self.asked.n]
                told = self._logprobs[piece.index].told(prompt.ids, piece.prompt)
            elif self.asked.logprobs is not None and piece.ids:
                told = self._logprobs[piece.index].told(piece.ids, piece.logprobs)
            if text or told or piece.finish or first:
                yield self.head.json([_choice(piece.index, text, told, piece.finish or None)])
        options = self.asked.stream_options
        if options is not None and options.include_usage:
            yield self.head.json([], self.usage)

    async def collected(self, generation: Generation, echoed: list[str] | None) -> Json:
        """The whole answer: the same pieces, put together."""
        choices = [_choice(index, "", None, None) for index in range(len(self._logprobs))]
        async for chunk in self.chunks(generation, echoed):
            for part in chunk["choices"]:
                choice = choices[part["index"]]
                choice["text"] += part["text"]
                choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]
                if part["logprobs"] is not None:
                    told = choice["logprobs"] or {}
                    choice["logprobs"] = {
                        name: [*told.get(name, ()), *values] for name, values in part["logprobs"].items()
                    }
        return self.head.json(choices, self.usage)


def _choice(index: int, text: str, logprobs: Json | None, finish: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
