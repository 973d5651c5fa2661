"""The settings of AdamW. Optimizers that leave some parameters to it derive theirs from them."""

from __future__ import annotations

from typing import Literal

from erniecore.sections import Field, OptimizerConfig


class AdamWConfig(OptimizerConfig):
    """AdamW. Learning rate and weight decay are in `train`."""

    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the second moment.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")
    moments: Literal["float32", "bfloat16"] = Field("float32", description="Dtype of the moments.")
