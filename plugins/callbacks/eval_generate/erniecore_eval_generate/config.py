"""Settings of the callback ``eval-generate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from erniecore.api import Field, Section

if TYPE_CHECKING:
    pass


#: what the names of the metrics begin with
PREFIX = "generate/"


class Config(Section):
    """What is completed, and how completions are scored."""

    data: str = Field(
        "", description="File, folder or name of rows with prompts and reference answers; empty: `data.eval`."
    )
    metrics: list[str] = Field(
        ["exact-match"], min_length=1, description="Reward functions that score completions; each is a metric."
    )
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Settings of these reward functions by name: `{numeric: {relative: 0.01}}`."
    )
    max_new_tokens: int = Field(128, ge=1, description="New tokens per completion.")
    limit: int = Field(0, ge=0, description="Rows that are evaluated, the first ones; 0: all.")
    every: int = Field(0, ge=0, description="Steps between two such evaluations, a multiple of `eval.every`; 0: each.")
    batch_size: int = Field(8, ge=1, description="Completions that are decoded together.")
    completions: int = Field(1, ge=1, description="Completions of each prompt, with a temperature above 0.")
    temperature: float = Field(0.0, ge=0, description="Of sampling; 0: greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Of sampling.")
    seed: int = Field(0, ge=0, description="Of sampling; every evaluation draws the same numbers.")
    samples: int = Field(
        8, ge=0, le=100, description="Completions per evaluation, the first ones, that `eval-generate.jsonl` keeps."
    )

    @model_validator(mode="after")
    def _several(self) -> Config:
        if self.completions > 1 and not self.temperature:
            raise ValueError("completions=1 is all that a temperature of 0 gives: greedy completions are alike")
        if unknown := sorted(self.options.keys() - {*self.metrics}):
            raise ValueError(f"options has settings of {unknown[0]}, which is none of the metrics")
        return self
