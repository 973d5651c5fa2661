"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``: the model's tokenizer for clients that count or score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from erniecore.api import Json
from erniecore_openai.errors import ApiError
from erniecore_openai.rendering import conversation_prompt
from erniecore_openai.schemas.completions import DetokenizeRequest, TokenizeRequest
from erniecore_openai.security import LimitedRoute
from erniecore_openai.state import ServedModel, Serving

router = APIRouter(route_class=LimitedRoute)


@router.post("/tokenize", operation_id="tokenize")
async def tokenize(request: Request, asked: TokenizeRequest) -> Any:
    """Token ids: of a text as completions have them, of messages as chat completions have them.

    A text that is the name of a special token and nothing else has that one's id: clients ask so for `bos_token` and
    `eos_token` of `/tokenizer_info`. Inside of a text it is text.
    """
    serving: Serving = request.app.state.serving
    model = serving.model(asked.model)
    ids = await serving.in_texts(_encoded, model, asked, serving.settings.media_roots)
    return {"count": len(ids), "max_model_len": model.context, "tokens": ids}


def _encoded(model: ServedModel, asked: TokenizeRequest, roots: Sequence[str]) -> list[int]:
    if asked.prompt is None:
        return list(conversation_prompt(model.tokenizer, asked, roots=roots).ids)
    special = model.tokenizer.special_tokens.get(asked.prompt)
    if special is not None:
        return [special]
    first = [model.tokenizer.bos_id] if asked.add_special_tokens else []
    return [*first, *model.tokenizer.encode(asked.prompt)]


@router.post("/detokenize", operation_id="detokenize")
async def detokenize(request: Request, asked: DetokenizeRequest) -> Any:
    """The text of token ids, special tokens included."""
    serving: Serving = request.app.state.serving
    model = serving.model(asked.model)
    worst = max(asked.tokens, default=0)
    if worst >= model.vocab_size:
        raise ApiError(
            400, f"tokens: {worst} is outside the vocabulary; expected less than {model.vocab_size}", param="tokens"
        )
    return {"prompt": await serving.in_texts(lambda: model.tokenizer.decode(asked.tokens, skip_special=False))}


@router.get("/tokenizer_info", operation_id="tokenizer_info")
async def tokenizer_info(request: Request) -> Any:
    """Special tokens by their texts, and the chat template."""
    tokenizer = request.app.state.serving.model().tokenizer
    texts = {token: text for text, token in tokenizer.special_tokens.items()}
    template = tokenizer.chat_template
    told: Json = {
        "bos_token": texts.get(tokenizer.bos_id),
        "eos_token": texts.get(tokenizer.eos_id),
        "pad_token": texts.get(tokenizer.pad_id),
        "chat_template": None if template is None else template.source,
    }
    return told
