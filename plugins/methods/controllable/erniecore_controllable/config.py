"""The settings of controllable language modeling."""

from __future__ import annotations

from pydantic import field_validator

from erniecore.api import Field
from erniecore.api.method import MethodConfig

#: a genre has fewer soft tokens
MOST = 64


class ControllableConfig(MethodConfig):
    """Language modeling behind prompts of attributes, which are dropped at random."""

    genres: dict[str, int] = Field(
        default_factory=dict,
        description="Genre -> how many soft tokens it has, at most 63, such as `{news: 8, poem: 8}`. They are the ids behind "
        "those of the tokenizer, in this order: the model's vocabulary must be larger by their sum.",
    )
    plain: float = Field(
        0.5, ge=0, le=1, description="Probability that a sample is learned as plain text, without any attribute."
    )
    dropout: float = Field(
        0.5, ge=0, le=1, description="Probability that an attribute of another sample is dropped, for each by itself."
    )
    eval_plain: bool = Field(
        False,
        description="Held-out texts are read without any attribute: how good a plain language model it still is. To compare with "
        "one, train that with `plain: 1`; `pt` has no begin token, and does not learn the first token of a text.",
    )

    @field_validator("genres")
    @classmethod
    def _few(cls, genres: dict[str, int]) -> dict[str, int]:
        for name, count in genres.items():
            if not 0 < count < MOST:
                raise ValueError(f"{name} has {count} soft tokens; expected 1 to {MOST - 1}")
        return genres
