"""Settings of the server ``fastdeploy``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from erniecore.api import Field, Section


class FastDeployConfig(Section):
    """How FastDeploy is started. What is left out is left to FastDeploy, but for the address: there it listens everywhere."""

    command: str = Field(
        "python -m fastdeploy.entrypoints.openai.api_server",
        description="What starts the server, with the interpreter of the environment that has FastDeploy, such as "
        "`/opt/fastdeploy/bin/python -m fastdeploy.entrypoints.openai.api_server`.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on; another one than loopback needs an API key.")
    port: int = Field(8180, ge=1, le=65535, description="Port of the HTTP interface.")
    metrics_port: int = Field(
        8181, ge=1, le=65535, description="Port of `/metrics`, which FastDeploy opens on every address of the machine."
    )
    queue_port: int = Field(8182, ge=1, le=65535, description="Port between FastDeploy's own processes.")
    cache_port: int = Field(8183, ge=1, le=65535, description="Port of its queue for the KV cache.")
    key_file: str = Field(
        "", description="File with the API key that clients must send; empty: `$ERNIE_API_KEY`, or none is asked for."
    )
    name: str = Field("", description="Name of the model for clients; empty: FastDeploy's choice.")
    tensor_parallel: int = Field(1, ge=1, description="Devices that share the model.")
    context: int = Field(0, ge=0, description="Most tokens of a prompt with its completion; 0: what the model has.")
    rows: int = Field(0, ge=0, description="Completions that are decoded together; 0: FastDeploy's choice.")
    quantization: Literal["", "wint8", "wint4", "wint2", "block_wise_fp8"] = Field(
        "",
        description="How FastDeploy quantizes unquantized weights as it loads them; empty: not, or as config.json says.",
    )
    reasoning_parser: str = Field(
        "auto", description="Parser of reasoning; `auto`: that of the checkpoint, by its chat template; empty: none."
    )
    tool_parser: str = Field("auto", description="Parser of tool calls; `auto` and empty as above.")
    speculative: Literal["off", "mtp", "ngram"] = Field("off", description="Drafter of speculative decoding.")
    options: tuple[str, ...] = Field(
        (),
        description="Further options of FastDeploy as `name=value`, or `name` for a switch, such as `block-size=64`.",
    )
    prompt_differences: Literal["error", "warn"] = Field(
        "error",
        description="What it is when the prompts of rows have other tokens there or in transformers than in training (ERN-K031).",
    )
    start_seconds: float = Field(900.0, gt=0, description="Time until the server must be healthy.")
    hang_seconds: float = Field(60.0, gt=0, description="A server whose `/health` is silent for so long is stopped.")
    stop_seconds: float = Field(60.0, ge=0, description="After SIGTERM or Ctrl-C, time to finish running completions.")
    dry_run: bool = Field(False, description="Check the model and print the command, and start nothing.")

    @field_validator("options", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value
