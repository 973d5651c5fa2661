"""Settings of the server ``disaggregated``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from erniecore_openai.config import OpenAIConfig

from erniecore.api import Field

if TYPE_CHECKING:
    pass


class DisaggregatedConfig(OpenAIConfig):
    """What the server can be told: everything that ``openai`` can, and how many processes do what."""

    prefill: int = Field(1, ge=1, le=64, description="Processes that compute prompts, at the start.")
    decode: int = Field(1, ge=1, le=64, description="Processes that decode completions, at the start.")
    transport: Literal["shared_memory", "tcp"] = Field(
        "shared_memory", description="How keys and values travel: memory that processes share, or TCP over loopback."
    )
    policy: Literal["prefix", "load"] = Field(
        "prefix",
        description="Which process computes a prompt: the one with the least left to compute, where beginnings that it has "
        "cached count as done (prefix) or as any other token (load).",
    )
    threads: int = Field(0, ge=0, description="Threads of each process for matrix products; 0: as many as without.")
    target_ttft: float = Field(
        0.0,
        ge=0,
        description="Seconds to the first token to aim at, by changing roles; 0: roles change by command alone.",
    )
    target_tpot: float = Field(0.0, ge=0, description="Seconds for each further token to aim at, as target_ttft.")
    hysteresis: float = Field(
        0.2, ge=0, lt=1, description="A target is missed above 1 + this, and met with room below 1 - this."
    )
    dwell_seconds: float = Field(20.0, ge=0, description="Least time between two changes of roles by targets.")
    drain_role_seconds: float = Field(
        30.0, gt=0, description="Time for a process to finish before its role changes; then it keeps the role."
    )
    handoff_bytes: int = Field(
        1 << 30, ge=1, description="Keys and values that may be on their way to one process at a time."
    )
    handoff_seconds: float = Field(
        10.0, gt=0, description="A hand-off without news for so long is given up, and its memory freed."
    )
    health_seconds: float = Field(
        15.0, gt=0, description="A process that has not replied for so long is killed and started again."
    )
    retries: int = Field(2, ge=0, description="Times that a completion begins again when its process was lost.")
    restarts: int = Field(5, ge=0, description="Times within ten minutes that a process is started again.")
