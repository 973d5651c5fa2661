"""Fields that chat completions and completions share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Most of the likely tokens that are told for each token.
MOST_LOGPROBS = 20
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
StopText = Annotated[str, Field(min_length=1, max_length=256)]
__all__ = ["MOST_LOGPROBS", "SamplingFields", "Schema", "StopText", "StreamOptions", "Token"]


class Schema(BaseModel):
    """A JSON object of a request. ``null`` for a field is as if it were not there."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


class StreamOptions(Schema):
    """What a stream has beside its chunks."""

    include_usage: bool = Field(False, description="Send a last chunk with the usage and no choices.")


Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1024)]


class StructuredOutputs(Schema):
    """What a completion has to look like: one of these."""

    json_schema: dict[str, Any] | str | None = Field(None, alias="json", description="A JSON schema.")
    regex: str | None = Field(None, min_length=1, description="A regular expression for the whole text.")
    choice: Choices | None = Field(None, description="One of these texts.")
    json_object: Literal[True] | None = Field(None, description="Any JSON object.")

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if len(self.model_fields_set) != 1:
            raise ValueError("give one of json, regex, choice and json_object")
        return self


class SamplingFields(Schema):
    """How tokens are chosen, and when a completion ends. Left out: as the model's generation_config.json says."""

    model: str | None = Field(None, max_length=512, description="Name of the served model; left out: the only one.")
    n: int = Field(1, ge=1, le=1024, description="Completions of each prompt.")
    stream: bool = Field(False, description="Send the completion in chunks, as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    seed: int | None = Field(None, ge=0, lt=1 << 63, description="The same seed and request: the same completion.")
    temperature: float | None = Field(None, ge=0, le=100, description="0: the most likely token.")
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=1 << 31, description="0 or -1: all tokens.")
    min_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=1024, description="Token id -> number that is added to its logit."
    )
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = Field(
        None, description="Strings that end a completion and are not part of it."
    )
    stop_token_ids: list[Token] | None = Field(None, max_length=64, description="Further tokens that end a completion.")
    ignore_eos: bool = Field(False, description="Only `stop_token_ids` and `stop` end a completion.")
    min_tokens: int = Field(0, ge=0, lt=1 << 31, description="No stop token before so many tokens.")
    structured_outputs: StructuredOutputs | None = Field(None, description="What a completion has to look like.")
    guided_json: dict[str, Any] | str | None = Field(None, description="`structured_outputs.json`.")
    guided_regex: str | None = Field(None, min_length=1, description="`structured_outputs.regex`.")
    guided_choice: Choices | None = Field(None, description="`structured_outputs.choice`.")
    user: str | None = Field(None, max_length=512, description="Accepted and not used.")

    @model_validator(mode="after")
    def _consistent(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only with stream")
        for token in self.logit_bias or ():
            if not (token.isascii() and token.isdecimal() and len(token) < 10):
                raise ValueError("logit_bias: its names are token ids")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, none or several."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
