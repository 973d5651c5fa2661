"""Requests of ``/v1/chat/completions``: messages, tools and what chat has beyond completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from typing_extensions import Self

from erniecore_openai.schemas.common import MOST_LOGPROBS, SamplingFields, Schema

_UNREAD = ("input_audio", "audio_url", "file", "image", "video")
_SEEN = ("image_url", "video_url")


def _known(part: Any) -> Any:
    """Parts that no model here reads are refused by their name."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _UNREAD:
        raise ValueError(f"parts of type {kind} are not supported; images are parts of type image_url")
    return part


def _only_text(part: Any) -> Any:
    """The same, and those that only users send."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _SEEN:
        raise ValueError(f"parts of type {kind} belong to messages of the user")
    return _known(part)


class TextPart(Schema):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(Schema):
    """Where an image is. It is never fetched."""

    url: str = Field(min_length=1, description="A data URL in base64; a path where `media_roots` allows it.")
    detail: Literal["auto", "high"] = Field("auto", description="Images are read in the size that the model asks for.")


class VideoUrl(Schema):
    """Where a video is. It is never fetched."""

    url: str = Field(min_length=1, description="As of an image.")


class ImagePart(Schema):
    """An image of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class VideoPart(Schema):
    """A video of a message."""

    type: Literal["video_url"]
    video_url: VideoUrl


Part = Annotated[TextPart, BeforeValidator(_only_text)]
SeenPart = Annotated[Annotated[TextPart | ImagePart | VideoPart, Field(discriminator="type")], BeforeValidator(_known)]


class CalledFunction(Schema):
    """A function with the arguments that the model wrote."""

    name: str = Field(min_length=1, max_length=256)
    arguments: str = Field(description="JSON text.")


class Call(Schema):
    """A tool call of an earlier answer."""

    id: str = Field("", max_length=512)
    type: Literal["function"] = "function"
    function: CalledFunction


class InstructionMessage(Schema):
    """What the model is told beforehand."""

    role: Literal["system", "developer"]
    content: str | list[Part]


class UserMessage(Schema):
    """What a user says."""

    role: Literal["user"]
    content: str | list[SeenPart]


class AssistantMessage(Schema):
    """An earlier answer. ``reasoning`` is another name of ``reasoning_content``."""

    role: Literal["assistant"]
    content: str | list[Part] = ""
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[Call] = []
    refusal: None = None


class ToolMessage(Schema):
    """The result of a tool call."""

    role: Literal["tool"]
    content: str | list[Part]
    tool_call_id: str = Field("", max_length=512)
    name: str = Field("", max_length=256)


ChatMessage = Annotated[InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class InOrder(Schema):
    """Dumped with its fields in the order in which they were given: chat templates print tools as they are, so rows and
    requests with the same tools have the same tokens."""

    _given: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _remember(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(value)
        if isinstance(value, dict):
            made._given = tuple(value)
        return made

    @model_serializer(mode="wrap")
    def _in_order(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = handler(self)
        return {name: dumped[name] for name in (*self._given, *dumped) if name in dumped}


class Function(InOrder):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool | None = Field(None, description="Calls keep to `parameters`; left out: only those that are forced.")


class Tool(InOrder):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class NamedFunction(Schema):
    """A function by its name."""

    name: str = Field(min_length=1, max_length=256)


class NamedTool(Schema):
    """``tool_choice`` for one call of a certain function."""

    type: Literal["function"]
    function: NamedFunction


class ThinkingMode(Schema):
    """``options`` of templates that have a thinking mode."""

    thinking_mode: Literal["open", "close"]


class TemplateOptions(Schema):
    """``chat_template_kwargs``: whether the answer begins with reasoning, in the words of different servers."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    options: ThinkingMode | None = None

    @property
    def asks(self) -> bool | None:
        """Whether reasoning is asked for; None: as the template has it."""
        if self.options is not None:
            return self.options.thinking_mode == "open"
        return self.thinking if self.enable_thinking is None else self.enable_thinking


class Conversation(Schema):
    """What is rendered by the chat template."""

    messages: list[ChatMessage] = Field([], max_length=10_000)
    tools: list[Tool] = Field([], max_length=1024, description="Functions that the model may call.")
    chat_template_kwargs: TemplateOptions = Field(TemplateOptions(), description="`enable_thinking`.")
    add_generation_prompt: Literal[True] = Field(True, description="What the model is given ends so.")


class SchemaOfAnswer(Schema):
    """``json_schema`` of OpenAI. Answers keep to the schema whether ``strict`` or not."""

    name: str = Field(min_length=1, max_length=256)
    description: str = ""
    json_schema: dict[str, Any] = Field({}, alias="schema")
    strict: bool = True


class ResponseFormat(Schema):
    """What an answer has to look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaOfAnswer | None = None

    @model_validator(mode="after")
    def _agrees(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema: with the type json_schema, and only with it")
        return self


class ChatRequest(SamplingFields, Conversation):
    """Continue a conversation with the next message of the assistant."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000)
    max_tokens: int | None = Field(
        None, ge=1, lt=1 << 31, description="Most new tokens; left out: what the context leaves."
    )
    max_completion_tokens: int | None = Field(None, ge=1, lt=1 << 31, description="The newer name of `max_tokens`.")
    logprobs: bool = Field(False, description="Log-probabilities of the new tokens.")
    top_logprobs: int = Field(0, ge=0, le=MOST_LOGPROBS, description="Likely tokens for each; only with `logprobs`.")
    response_format: ResponseFormat | None = Field(None, description="Text, any JSON object, or one of a schema.")
    tool_choice: Literal["auto", "none", "required"] | NamedTool = Field(
        "auto", description="Whether the model may call tools, or has to call some or a certain one."
    )
    parallel_tool_calls: bool = Field(True, description="An answer may have several tool calls.")

    @model_validator(mode="after")
    def _agrees(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only with logprobs")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_completion_tokens: differs from max_tokens, which is its older name")
        names = [tool.function.name for tool in self.tools]
        if self.forces_calls and not names:
            raise ValueError("tool_choice: there are no tools")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ValueError("tool_choice.function.name: none of the tools has this name")
        return self

    @property
    def forces_calls(self) -> bool:
        """Whether the answer has to be a tool call."""
        return not isinstance(self.tool_choice, str) or self.tool_choice == "required"

    @property
    def most_tokens(self) -> int | None:
        """Most new tokens; None: what the context leaves."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
