"""Settings of the adapter ``oft``."""

from __future__ import annotations

from erniecore_lora.config import LinearAdapterConfig
from pydantic import field_validator

from erniecore.api import Field


class OftConfig(LinearAdapterConfig):
    """y = W (Rᵀ x): the inputs of frozen layers are rotated by blocks R = (I − Q) (I + Q)⁻¹ with Q = −Qᵀ trained, the Cayley
    transform (arXiv:2306.07280), in the input-centric form of OFTv2 (arXiv:2506.19847)."""

    block_size: int = Field(
        32,
        ge=2,
        description="Rows of each block, which must divide the inputs of every layer: a layer with n inputs has n / block_size "
        "blocks of block_size (block_size − 1) / 2 values.",
    )
    neumann_terms: int = Field(
        0,
        ge=0,
        description="0: the Cayley transform, exactly orthogonal, by a linear system per block. 4 or more: so many terms of its "
        "series, I + 2 Q + 2 Q² + … + Qⁿ⁻¹ with the other sign of Q, as PEFT computes by default (5): faster, and "
        "orthogonal only while Q is small.",
    )

    @field_validator("neumann_terms")
    @classmethod
    def _enough(cls, value: int) -> int:
        if 0 < value < 4:
            raise ValueError("0, or at least 4 terms; PEFT's default is 5")
        return value
