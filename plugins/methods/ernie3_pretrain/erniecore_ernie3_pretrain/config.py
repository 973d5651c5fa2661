"""The settings of ERNIE 3.0's pre-training, and of rows with knowledge."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import model_validator
from typing_extensions import Self

from erniecore.api import Field
from erniecore.api.method import MethodConfig

#: in the order in which a draw goes through them
KMLM, DOCUMENT, REORDER, DISTANCE, UKTP = TASKS = ("kmlm", "document", "reorder", "distance", "uktp")


class Ernie3PretrainConfig(MethodConfig):
    """Which objectives there are, how often each is drawn for a sample that it can use, and what they do with it."""

    kmlm: float = Field(1.0, ge=0, description="Weight of knowledge-masked language modeling; 0: none.")
    document: float = Field(
        1.0, ge=0, description="Weight of document language modeling, with recurrence memory; 0: none."
    )
    reorder: float = Field(0.5, ge=0, description="Weight of sentence reordering; 0: none.")
    distance: float = Field(0.5, ge=0, description="Weight of sentence distance; 0: none.")
    uktp: float = Field(1.0, ge=0, description="Weight of universal knowledge-text prediction; 0: none.")
    segment_length: int = Field(
        128,
        ge=0,
        description="Tokens that the model reads at once. Document language modeling reads a sample of `data.max_seq_len` "
        "tokens in segments of as many, each behind the memory of those before; the other objectives read a part of it. "
        "0: whole samples, without memory.",
    )
    mask_ratio: float = Field(
        0.15,
        gt=0,
        lt=1,
        description="Share of the tokens of a text that are hidden, by whole words, phrases and entities.",
    )
    steps: int = Field(
        0,
        ge=0,
        description="Steps in which length, batch and dropout grow linearly (progressive learning), where they are set to begin "
        "below their ends; 0: those of the warm-up of the learning rate.",
    )
    start_length: int = Field(
        0,
        ge=0,
        description="Tokens that the model reads at once in the first step; they grow to `segment_length`. 0: that from the "
        "first step on.",
    )
    start_batch: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Fraction of a step's micro-batches that the first step learns from; it grows to 1.",
    )
    start_dropout: float = Field(
        1.0, ge=0, le=1, description="Fraction of `model.dropout` that is dropped in the first step; it grows to 1."
    )
    mask_token: str = Field("<mask:1>", description="The special token that hides another one.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not any(self.weights().values()):
            raise ValueError(f"no objective has a weight above 0: {', '.join(TASKS)}")
        if 0 < self.segment_length < 8:
            raise ValueError("segment_length: at least 8 tokens, or 0 for whole samples")
        if self.start_length and not 8 <= self.start_length <= self.segment_length:
            raise ValueError(
                f"start_length: from 8 tokens to segment_length ({self.segment_length}), to which it grows; or 0 for no growth"
            )
        return self

    def weights(self) -> Mapping[str, float]:
        """Objective -> weight, in the order of ``TASKS``."""
        return {
            KMLM: self.kmlm,
            DOCUMENT: self.document,
            REORDER: self.reorder,
            DISTANCE: self.distance,
            UKTP: self.uktp,
        }
