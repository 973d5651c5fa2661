"""Settings of the callback ``lm-eval``."""

from __future__ import annotations

from typing import Any

from erniecore.api import Field, Section

#: what the names of the metrics begin with
PREFIX = "lm-eval/"


class Config(Section):
    """The tasks, and how they are asked; the options of ``ernie lm-eval``."""

    tasks: list[str] = Field(description="Tasks, groups, tags, or YAML files.", min_length=1)
    include_path: str = Field("", description="Directory with task files of yours.")
    num_fewshot: int | None = Field(None, ge=0, description="Examples per prompt; empty: as the task has it.")
    limit: int = Field(0, ge=0, description="First rows of each task; 0: all.")
    every: int = Field(0, ge=0, description="Steps between two such evaluations, a multiple of `eval.every`; 0: each.")
    batch_size: int = Field(8, ge=1, description="Completions that are decoded together; scores do not depend on it.")
    max_length: int = Field(0, ge=0, description="Context in tokens; 0: the model's, at most 8192.")
    chat_template: bool = Field(False, description="Prompts go through the chat template.")
    system: str = Field("", description="System message, or text before a prompt.")
    multiturn: bool = Field(True, description="Examples are messages of their own, not part of one.")
    gen_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Generation settings over those of the tasks: `{max_gen_toks: 64}`."
    )
    seed: int = Field(0, ge=0, description="Random seed of examples and of sampling.")
    samples: int = Field(
        8, ge=0, le=100, description="Rows of each task, the first ones, that `lm-eval.jsonl` keeps per evaluation."
    )
