"""The settings of elastic training, which it adds to those of pre-training and of fine-tuning."""

from __future__ import annotations

from typing import Literal

from erniecore_pretrain.config import PretrainConfig
from erniecore_sft.config import SftConfig

from erniecore.api import Field
from erniecore.api.method import MethodConfig


class ElasticSection(MethodConfig):
    """Which smaller models are trained inside the model, and how often."""

    depths: list[int] = Field(
        [],
        description="Numbers of layers of the shallower models, of which one is drawn; first and last layer always run.",
    )
    depth_probability: float = Field(0.25, ge=0, le=1, description="Of a micro-step with fewer layers.")
    layer_choice: Literal["random", "even"] = Field(
        "random",
        description="Which layers a shallower model has: `random`, or `even`, the evenly spaced ones that `ernie extract` takes.",
    )
    widths: list[int] = Field(
        [],
        description="Numbers of routed experts of the narrower models, of which one is drawn; the experts are random.",
    )
    expert_groups: int = Field(
        1,
        ge=1,
        description="Groups of neighboring experts that keep as many each. As many as `parallel.expert`: each rank has as much "
        "to compute; the layout itself changes nothing that is drawn.",
    )
    width_probability: float = Field(0.2, ge=0, le=1, description="Of a micro-step with fewer experts.")
    selected: list[int] = Field(
        [], description="Numbers of experts per token of the sparser models, of which one is drawn."
    )
    selected_probability: float = Field(0.2, ge=0, le=1, description="Of a micro-step with fewer experts per token.")
    whole: int = Field(
        0, ge=0, description="Micro-steps of each optimizer step, the first ones, that always run the whole model."
    )
    retain: float = Field(
        1.0,
        gt=0,
        le=1,
        description="With a pipeline: the probability that chunks which begin their backward pass together keep their layers. "
        "Below 1 it takes the place of `depths`.",
    )

    @property
    def active(self) -> bool:
        """Whether anything but the whole model is trained."""
        return bool(self.depths or self.widths or self.selected) or self.retain < 1


class ElasticPretrainConfig(ElasticSection, PretrainConfig):
    """Elastic pre-training: as `pt`, and the smaller models inside the model."""


class ElasticSftConfig(ElasticSection, SftConfig):
    """Elastic fine-tuning: as `sft`, and the smaller models inside the model."""
