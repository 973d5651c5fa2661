"""The settings of progressive learning."""

from __future__ import annotations

from erniecore_pretrain.config import PretrainConfig

from erniecore.api import Field


class ProgressiveConfig(PretrainConfig):
    """Pre-training whose sequences, batches and dropout grow during the first steps, with the learning rate."""

    steps: int = Field(
        0, ge=0, description="Steps in which everything grows linearly; 0: those of the warm-up of the learning rate."
    )
    start_length: int = Field(
        64, ge=1, description="Tokens that attend to each other in the first step; they grow to `data.max_seq_len`."
    )
    start_batch: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Fraction of a step's micro-batches that the first step learns from; it grows to 1.",
    )
    start_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of the embeddings in the first step.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of the embeddings after the last growing step.")
