"""From a request to what the engine takes: messages and texts become token ids by the model's own template and tokenizer,
the same code that training uses, and fields become sampling parameters.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from erniecore_generation.completions import prompt_ids
from erniecore_generation.media import MediaPart, PromptMedia, media_parts, references
from erniecore_generation.options import sampling_from
from erniecore_generation.prompts import check_prompt
from erniecore_generation.sampling import Sampling

from erniecore.api import DataError, ErnieError, Json, RowError, UsageError
from erniecore.api.data import Message, ToolCall
from erniecore.api.model import ChatTemplate, Tokenizer
from erniecore_openai.errors import ApiError
from erniecore_openai.generation import as_api_error
from erniecore_openai.media import seen_content, unreadable
from erniecore_openai.schemas.chat import (
    AssistantMessage,
    ChatMessage,
    Conversation,
    ImagePart,
    TextPart,
    ToolMessage,
    VideoPart,
)
from erniecore_openai.schemas.common import SamplingFields
from erniecore_openai.state import ServedModel


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a completion begins with.

    Attributes:
        thinking: it begins inside of the reasoning. parts: those with an image or a video; ``places``: theirs in the request.
        media: the same when they are decoded.
    """

    ids: tuple[int, ...]
    thinking: bool = False
    parts: tuple[MediaPart, ...] = ()
    places: tuple[str, ...] = ()
    media: PromptMedia | None = None


def conversation_prompt(
    tokenizer: Tokenizer,
    request: Conversation,
    *,
    tools: bool = True,
    roots: Sequence[str] = (),
    served: ServedModel | None = None,
) -> Prompt:
    """What the model is given for the next message. Images are not decoded: their headers suffice.

    Args:
        tools: offer those of the request. roots: directories of images that are given as paths. served: the model whose
            context images have to fit.

    Raises:
        ApiError: no template, one that refuses the messages, or one without the switch that was asked for; an image that is
            not read; images in a prompt that is longer than the context.
    """
    template = tokenizer.chat_template
    if template is None:
        raise ApiError(
            400, "this model has no chat template; use /v1/completions", param="messages", code="no_template"
        )
    messages = [_seen(template, m, i, roots) or message_of(m) for i, m in enumerate(request.messages)]
    offered: list[Json] = (
        [tool.model_dump(exclude_unset=True, exclude={"function": {"strict"}}) for tool in request.tools]
        if tools
        else []
    )
    asked = request.chat_template_kwargs.asks
    try:
        if asked is not None and _same_either_way(template):
            raise ApiError(
                400, "this model's chat template has no switch for reasoning", param="chat_template_kwargs",
                code="unsupported_parameter",
            )  # fmt: skip
        ids, thinking = prompt_ids(tokenizer, template, messages, offered, asked)
        if served is not None:
            _check_room(served, messages, ids)
        found = references(template, messages, ids)
        parts = media_parts(template, np.array(ids, np.int64), found) if found else ()
        places = [media.where for message in messages for media in message.media]
        return Prompt(tuple(ids), thinking, tuple(parts), tuple(places[: len(parts)]))
    except DataError as error:
        if isinstance(error, RowError) and error.where.startswith("messages["):
            raise unreadable(error, error.where) from error
        raise ApiError(400, as_api_error(error).detail, param="messages", code="template_refused") from error
    except ErnieError as error:
        refused = as_api_error(error)
        raise ApiError(400, refused.detail, param="messages", code="template_refused") from error


def _check_room(model: ServedModel, messages: Sequence[Message], ids: Sequence[int]) -> None:
    """Refuse images of a prompt that the engine is going to refuse, before they are decoded: a body of kilobytes can hold images
    of gigabytes, and what the context holds of them is known from their headers. Raises ``ApiError``."""
    if not any(message.media for message in messages):
        return
    array = np.array([ids], np.int64)
    try:
        check_prompt(
            array,
            np.ones_like(array),
            {"vocab_size": model.vocab_size, "max_position_embeddings": model.context},
            1,
        )
    except UsageError as error:
        raise as_api_error(error) from error


def _seen(template: ChatTemplate, message: ChatMessage, index: int, roots: Sequence[str]) -> Message | None:
    """A message with images or videos; None without. Raises ``ApiError``."""
    parts = message.content
    if isinstance(parts, str) or all(isinstance(part, TextPart) for part in parts):
        return None
    content, media = seen_content(parts, template, f"messages[{index}].content", roots)
    return Message("user", content, media=media)


def _same_either_way(template: ChatTemplate) -> bool:
    """Whether the template asks for every completion in the same way."""
    with_it, without = (template.render([Message("user", "a")], thinking=asked) for asked in (True, False))
    return with_it == without


def message_of(message: ChatMessage) -> Message:
    """A message for the template. Tool calls keep their arguments as the client has them, if they are a JSON object.

    Raises:
        ApiError: arguments that are none.
    """
    content = _text(message.content)
    if isinstance(message, AssistantMessage):
        for index, call in enumerate(message.tool_calls):
            _check_arguments(call.function.arguments, f"tool_calls[{index}].function.arguments")
        calls = tuple(ToolCall(call.function.name, call.function.arguments) for call in message.tool_calls)
        return Message("assistant", content, message.reasoning_content or message.reasoning, calls)
    if isinstance(message, ToolMessage):
        return Message("tool", content)
    return Message("system" if message.role in ("system", "developer") else "user", content)


def _check_arguments(text: str, where: str) -> None:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ApiError(400, f"{where}: must be the text of a JSON object", param="messages", code="invalid_value")


def _text(content: str | Sequence[TextPart | ImagePart | VideoPart]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, TextPart))


def text_prompts(model: ServedModel, prompts: Sequence[str | list[int]]) -> list[Prompt]:
    """Prompts of completions: text without template, or ids as they are."""
    return [Prompt(tuple(model.tokenizer.encode(p) if isinstance(p, str) else p)) for p in prompts]


def sampling_of(model: ServedModel, request: SamplingFields) -> Sampling:
    """Sampling parameters: the request's over those of generation_config.json, else plain sampling.

    Raises:
        ApiError: a value out of range.
    """
    seed = secrets.randbits(63) if request.seed is None else request.seed
    top_k = None if request.top_k is None else max(request.top_k, 0)
    bias = tuple((int(token), value) for token, value in (request.logit_bias or {}).items())
    try:
        found = sampling_from(
            {"do_sample": True, **model.generation}, seed,
            temperature=request.temperature, top_p=request.top_p, top_k=top_k, min_p=request.min_p,
            frequency_penalty=request.frequency_penalty, presence_penalty=request.presence_penalty,
            repetition_penalty=request.repetition_penalty,
        )  # fmt: skip
        return replace(found, logit_bias=bias)
    except ErnieError as error:
        raise as_api_error(error) from error


def stop_ids(model: ServedModel, request: SamplingFields) -> frozenset[int]:
    """Tokens that end a completion of this request."""
    own = frozenset(request.stop_token_ids or ())
    return own if request.ignore_eos else own | model.stop_ids
