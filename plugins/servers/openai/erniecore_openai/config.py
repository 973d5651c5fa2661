"""Settings of the server ``openai``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from erniecore.api import Field, Section

if TYPE_CHECKING:
    pass


class OpenAIConfig(Section):
    """What the server can be told. There is no setting for the API key itself: the list of processes would show it."""

    host: str = Field("127.0.0.1", description="Address to listen on; another one than loopback needs an API key.")
    port: int = Field(8000, ge=0, le=65535, description="Port; 0: any free one.")
    name: str = Field("", description="Name of the model for clients; empty: that of its directory.")
    adapters: dict[str, str] = Field(
        {}, description="Name -> directory of a saved adapter, a model of its own for clients; `--adapter NAME=DIR`."
    )
    key_file: str = Field(
        "", description="File with the API key that clients must send; empty: `$ERNIE_API_KEY`, or none is asked for."
    )
    device: str = Field("cpu", description="Device plugin.")
    rows: int = Field(8, ge=1, le=4096, description="Completions that are decoded together.")
    waiting: int = Field(1024, ge=0, description="Completions that may wait for a row; more are refused (429).")
    waiting_requests: int = Field(
        256,
        ge=0,
        description="Requests beyond `rows` that may be in the server, whatever their `n`; more are refused (429).",
    )
    context: int = Field(
        0, ge=0, description="Most tokens of a prompt with its completion; 0: `max_position_embeddings`."
    )
    chunk: int = Field(64, ge=16, multiple_of=16, description="Tokens of a prompt that are computed in one pass.")
    prefix_bytes: int = Field(256 << 20, ge=0, description="Memory that keeps the beginnings of prompts; 0: none.")
    speculative: Literal["off", "lookup", "mtp"] = Field(
        "off", description="Drafter of speculative decoding, which changes no completion."
    )
    invariant: bool = Field(
        True, description="A completion has the same bits whatever else is decoded; false: it may be faster."
    )
    max_choices: int = Field(128, ge=1, description="Most completions of one request: its prompts times `n`.")
    max_body_bytes: int = Field(4 << 20, ge=1, description="Longest body of a request; a longer one is refused (413).")
    media_roots: tuple[str, ...] = Field(
        (),
        description="Directories that images and videos of messages may be read from as paths; none: data URLs alone.",
    )
    media_bytes: int = Field(
        2 << 30,
        ge=1,
        description="Memory of decoded images and videos of all requests that wait or are answered; more are refused (429).",
    )
    media_threads: int = Field(2, ge=1, le=64, description="Images and videos that are decoded at a time.")
    body_seconds: float = Field(
        30.0, gt=0, description="Time that a client has for headers, and again for a body (408)."
    )
    connections: int = Field(512, ge=1, description="Most connections at a time.")
    keep_alive_seconds: float = Field(
        15.0, gt=0, description="A stream without news for so long gets a comment, so that proxies keep it open."
    )
    drain_seconds: float = Field(
        30.0,
        ge=0,
        description="After SIGTERM or Ctrl-C, time to finish running completions; a second signal ends at once.",
    )
    prompt_differences: Literal["error", "warn"] = Field(
        "error",
        description="What it is when the prompts of rows have other tokens here or in transformers than in training (ERN-K031).",
    )
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = Field(
        "reasoning_content", description="Where answers have the reasoning of thinking models."
    )
