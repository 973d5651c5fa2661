"""Requests of ``/v1/completions``, ``/tokenize``, ``/detokenize`` and ``/v1/abort``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from erniecore_openai.schemas.chat import Conversation
from erniecore_openai.schemas.common import MOST_LOGPROBS, SamplingFields, Schema, Token

Text = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[Token], Field(min_length=1)]


class CompletionRequest(SamplingFields):
    """Continue text as it is, without chat template."""

    prompt: Text | Ids | Annotated[list[Text], Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1)] = Field(
        ..., description="Text or token ids, or a list of either."
    )
    max_tokens: int = Field(16, ge=0, lt=1 << 31, description="Most new tokens; 0 with `echo`: only the prompt.")
    echo: bool = Field(False, description="The text begins with the prompt; log-probabilities are also its.")
    logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="Log-probabilities, with so many likely tokens."
    )

    @model_validator(mode="after")
    def _has_room(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 only with echo")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """All prompts, each as text or as ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        several = [item for item in self.prompt if not isinstance(item, int)]
        return list(several) or [[item for item in self.prompt if isinstance(item, int)]]


#: Either a text or messages, for the OpenAPI document; that of requests says the same of its own two.
_TEXT_OR_MESSAGES: dict[str, Any] = {
    "oneOf": [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"maxItems": 0}}},
        {"required": ["messages"], "properties": {"prompt": {"type": "null"}, "messages": {"minItems": 1}}},
    ]
}
_ALL_OR_SOME: dict[str, Any] = {
    "oneOf": [
        {"required": ["abort_all"], "properties": {"abort_all": {"const": True}, "req_ids": {"maxItems": 0}}},
        {"required": ["req_ids"], "properties": {"abort_all": {"const": False}, "req_ids": {"minItems": 1}}},
    ]
}


class TokenizeRequest(Conversation):
    """Token ids of a text, or of messages as the model is given them."""

    model_config = ConfigDict(json_schema_extra=_TEXT_OR_MESSAGES)

    model: str | None = Field(None, max_length=512)
    prompt: str | None = Field(None, description="Text; or give `messages`.")
    add_special_tokens: bool = Field(False, description="Put the token that begins a text in front of a `prompt`.")

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("prompt: give either prompt or messages")
        return self


class DetokenizeRequest(Schema):
    """The text of token ids."""

    model: str | None = Field(None, max_length=512)
    tokens: list[Token]


class AbortRequest(Schema):
    """End requests that are being answered."""

    model_config = ConfigDict(json_schema_extra=_ALL_OR_SOME)

    abort_all: bool = Field(False, description="All of them.")
    req_ids: list[str] = Field([], description="Those with these ids, as answers have them.")

    @model_validator(mode="after")
    def _one(self) -> AbortRequest:
        if self.abort_all == bool(self.req_ids):
            raise ValueError("req_ids: give either req_ids or abort_all")
        return self
