"""``POST /v1/chat/completions``: a conversation is continued, with reasoning and tool calls apart from the content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from erniecore_generation.engine.requests import GenerationRequest
from fastapi import APIRouter, Request

from erniecore.api import Json
from erniecore_openai.answers import Head, Usage, new_id
from erniecore_openai.description import STREAMED
from erniecore_openai.errors import ApiError
from erniecore_openai.generation import Generation, Piece
from erniecore_openai.logprobs import TokenTexts, chat_logprobs
from erniecore_openai.media import decoded
from erniecore_openai.parsing import ChunkParser, Delta
from erniecore_openai.rendering import Prompt, conversation_prompt, sampling_of, stop_ids
from erniecore_openai.schemas.chat import ChatRequest
from erniecore_openai.security import LimitedRoute
from erniecore_openai.state import ServedModel, Serving
from erniecore_openai.steering import Form, form_of
from erniecore_openai.streaming import sse, whole

router = APIRouter(route_class=LimitedRoute)


@router.post("/v1/chat/completions", operation_id="create_chat_completion", responses=dict(STREAMED))
async def create_chat_completion(request: Request, asked: ChatRequest) -> Any:
    """Write the next message of a conversation."""
    serving: Serving = request.app.state.serving
    model = serving.model(asked.model)
    if asked.n > serving.settings.max_choices:
        raise ApiError(400, f"n: at most {serving.settings.max_choices} completions are taken", param="n")
    roots = serving.settings.media_roots
    calls = bool(asked.tools) and asked.tool_choice != "none"
    prompt = await serving.in_texts(
        lambda: conversation_prompt(model.tokenizer, asked, tools=calls, roots=roots, served=model)
    )
    form = await serving.in_texts(lambda: form_of(model, asked, calls=calls))
    answer = _Answer(model, asked, prompt, form, calls=calls, reasoning_field=serving.settings.reasoning_field)
    try:
        answer.prompt = await decoded(serving, answer.head.id, model, prompt)
        generation = Generation(serving, model.name, answer.head.id, answer.requests(), asked.stops)
        generation.start()
    except BaseException:
        serving.ended(answer.head.id)
        raise
    if asked.stream:
        return sse(answer.chunks(generation), generation, serving.settings.keep_alive_seconds)
    return await whole(request, generation, lambda: answer.collected(generation))


class _Answer:
    """The answer to one request."""

    def __init__(
        self, model: ServedModel, asked: ChatRequest, prompt: Prompt, form: Form | None, *, calls: bool,
        reasoning_field: str,
    ) -> None:  # fmt: skip
        self.model, self.asked, self.prompt, self.form = model, asked, prompt, form
        self.head = Head(new_id("chatcmpl"), "chat.completion.chunk" if asked.stream else "chat.completion", model.name)
        self.usage = Usage(len(prompt.ids))
        self._texts = TokenTexts(model.tokenizer)
        options = {
            "thinking": prompt.thinking, "tools": calls, "verbatim": form is not None and form.answers,
            "partial": asked.stream or (form is not None and form.forced),
        }  # fmt: skip
        self._parsers = [ChunkParser(**options) for _ in range(asked.n)]
        self._called = [0] * asked.n
        both = ("reasoning_content", "reasoning")
        self._reasoning_fields = both if reasoning_field == "both" else (reasoning_field,)

    def requests(self) -> list[GenerationRequest]:
        """What the engine is asked for, one request per completion."""
        asked, sampling, stops = self.asked, sampling_of(self.model, self.asked), stop_ids(self.model, self.asked)
        room = max(1, self.model.context - len(self.prompt.ids))  # a prompt that is too long is refused by the engine
        most = room if asked.most_tokens is None else asked.most_tokens
        return [
            GenerationRequest(
                self.prompt.ids, sampling, most, asked.min_tokens, stops, stream=index,
                logprobs=asked.top_logprobs if asked.logprobs else None,
                constraint=None if self.form is None else self.form.constraint(stops, thinking=self.prompt.thinking),
                adapter=self.model.adapter, media=self.prompt.media,
            )
            for index in range(asked.n)
        ]  # fmt: skip

    async def chunks(self, generation: Generation) -> AsyncIterator[Json]:
        """The choices piece by piece."""
        for index in range(self.asked.n):
            yield self.head.json([_chunk(index, {"role": "assistant", "content": ""}, None, None)])
        async for piece in generation.pieces():
            delta = self._take(piece)
            told = self._told(piece)
            parts = self._parts(piece.index, delta)
            if parts or told is not None or piece.finish:
                finish = self._finish(piece) or None
                yield self.head.json([_chunk(piece.index, parts, told, finish)])
        options = self.asked.stream_options
        if options is not None and options.include_usage:
            yield self.head.json([], self.usage)

    async def collected(self, generation: Generation) -> Json:
        """The whole answer."""
        wholes = [Delta() for _ in range(self.asked.n)]
        entries: list[list[Json]] = [[] for _ in wholes]
        finishes: list[str] = ["" for _ in wholes]
        async for piece in generation.pieces():
            wholes[piece.index].add(self._take(piece))
            told = self._told(piece)
            entries[piece.index] += told["content"] if told else ()
            finishes[piece.index] = finishes[piece.index] or self._finish(piece)
        choices: list[Json] = []
        for index, delta in enumerate(wholes):
            message = {"role": "assistant", "content": None, **self._parts(index, delta, streamed=False)}
            if not delta.tool_calls and message["content"] is None:
                message["content"] = ""
            logprobs = {"content": entries[index]} if self.asked.logprobs else None
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finishes[index]})
        return self.head.json(choices, self.usage)

    def _take(self, piece: Piece) -> Delta:
        """What a piece adds, parsed."""
        parser = self._parsers[piece.index]
        self.usage.add(piece, 0, reasoning=parser.reasons)
        delta = parser.feed(piece.text)
        if piece.finish:
            delta.add(parser.close())
        self._called[piece.index] += sum(bool(call.name) for call in delta.tool_calls)
        return delta

    def _parts(self, index: int, delta: Delta, *, streamed: bool = True) -> Json:
        """A delta, or a message but for its role."""
        parts: dict[str, Any] = {}
        if delta.reasoning:
            parts |= dict.fromkeys(self._reasoning_fields, delta.reasoning)
        if delta.content:
            parts["content"] = delta.content
        if delta.tool_calls:
            at = self._called[index] - sum(bool(call.name) for call in delta.tool_calls) - 1
            parts["tool_calls"] = told = []
            for call in delta.tool_calls:
                at += bool(call.name)
                function = (
                    {"name": call.name, "arguments": call.arguments} if call.name else {"arguments": call.arguments}
                )
                begun = {"id": new_id("chatcmpl-tool"), "type": "function"} if call.name else {}
                told.append({**({"index": at} if streamed else {}), **begun, "function": function})
        return parts

    def _told(self, piece: Piece) -> Json | None:
        if not self.asked.logprobs or not piece.logprobs:
            return None
        return {"content": chat_logprobs(self._texts, piece.logprobs)}

    def _finish(self, piece: Piece) -> str:
        return "tool_calls" if piece.finish == "stop" and self._called[piece.index] else piece.finish


def _chunk(index: int, delta: Json, logprobs: Json | None, finish: str | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
