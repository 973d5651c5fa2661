"""The ``model`` section of the settings for the mixture-of-experts models. Says what to build; reads no file."""

from __future__ import annotations

from erniecore_ernie45.config import DecoderSection
from pydantic import field_validator

from erniecore.api import Field


class RouterSection(DecoderSection):
    """What every model with routed experts can be told: how to train its routers."""

    capacity: tuple[float, ...] = Field(
        (),
        description="Three factors: training, evaluation, evaluation of fewer tokens than experts. An expert takes at most "
        "factor x tokens / experts assignments and drops later ones. Empty: nothing is dropped.",
    )
    router_aux_loss: float = Field(
        0.0, ge=0, description="Coefficient of the load-balancing loss, summed over layers; gradient only."
    )
    router_sequence_loss: float = Field(
        0.0,
        ge=0,
        description="Coefficient of the load-balancing loss of each row by itself (DeepSeek-V3: 1e-4), 1 for an even router; "
        "gradient only.",
    )
    router_z_loss: float = Field(
        0.0, ge=0, description="Coefficient of the squared log-partition of the router; gradient only."
    )
    router_orthogonal_loss: float = Field(
        0.0, ge=0, description="Coefficient of the loss that keeps the router's expert vectors apart; gradient only."
    )
    router_orthogonal_decoupled: bool = Field(
        False,
        description="Apply the orthogonal loss by itself after each optimizer step, W <- W - rate x coefficient x gradient, as "
        "decoupled weight decay does, so that Adam's moments never see it. Frozen routers stay.",
    )
    router_similarity_loss: float = Field(
        0.0,
        ge=0,
        description="Coefficient of the loss that makes the router's expert vectors orthonormal (SimBal, arXiv:2506.14038), "
        "summed over their products and layers; gradient only.",
    )
    bias_update_rate: float = Field(
        1e-3,
        ge=0,
        description="How far each step moves the selection bias of an expert towards an even load; 0: never. Frozen routers "
        "and models without `moe_use_aux_free` keep their bias.",
    )

    @field_validator("capacity")
    @classmethod
    def _three_positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if value and (len(value) != 3 or min(value) <= 0):
            raise ValueError("give three positive factors (training, evaluation, small evaluation), or none")
        return value


class MoeConfig(RouterSection):
    """Section of the mixture-of-experts models: how to train what config.json describes."""

    mtp: bool = Field(
        False,
        description="Build, load and train the multi-token-prediction layers. Off: their weights are left alone and the "
        "written config.json says `num_nextn_predict_layers: 0`.",
    )
