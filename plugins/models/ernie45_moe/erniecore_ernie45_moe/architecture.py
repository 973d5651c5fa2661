"""What a config.json says about an ERNIE 4.5 mixture-of-experts model, on top of the dense keys. No paddle, no numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from erniecore_ernie45.architecture import MOST_LAYERS, Architecture, Keys, decoder_fields, read_source

from erniecore.api import ConfigError, Json
from erniecore.api.model import DecoderShape, LayerShape
from erniecore_ernie45_moe.config import MoeConfig

SCORINGS = ("softmax", "sigmoid")
MTP_KEY = "num_nextn_predict_layers"
#: more experts than any model has
MOST_EXPERTS = 1 << 16


@dataclass(frozen=True)
class MoeArchitecture(Architecture):
    """Sizes of a mixture-of-experts decoder; ``last_moe_layer`` is resolved (never negative)."""

    num_experts: int
    num_selected: int
    expert_size: int
    num_shared_experts: int
    first_moe_layer: int
    last_moe_layer: int
    moe_interval: int
    norm_min: float
    scoring: str
    aux_free: bool
    num_mtp_layers: int

    @property
    def head_bias(self) -> bool:
        """The head has a bias when the projections have one, also when its weight is the embedding."""
        return self.use_bias

    def is_moe(self, index: int) -> bool:
        """Whether layer ``index`` (0-based) routes; the others have a dense MLP."""
        return (index + 1) % self.moe_interval == 0 and self.first_moe_layer <= index <= self.last_moe_layer

    def shape(self) -> DecoderShape:
        """Prediction layers are made like layer 0."""
        return replace(super().shape(), mtp_layers=(self.layer_shape(0),) * self.num_mtp_layers)

    def layer_shape(self, index: int) -> LayerShape:
        """Shared experts are one MLP that every token passes."""
        dense = super().layer_shape(index)
        if not self.is_moe(index):
            return dense
        routed = {"experts": self.num_experts, "selected": self.num_selected, "expert": self.expert_size}
        return replace(dense, mlp=self.num_shared_experts * self.expert_size, **routed)

    @classmethod
    def parse(cls, source: Json, where: str = "config.json") -> MoeArchitecture:
        """Raises ``CheckpointError`` for missing, impossible or contradictory keys."""
        keys = Keys(source, where)
        return cls(**decoder_fields(keys, "ernie4_5_moe"), **moe_fields(keys))


def moe_fields(keys: Keys) -> dict[str, Any]:
    """What :class:`MoeArchitecture` has beside the dense fields, as constructor arguments."""
    for key, supported in (("moe_gate", "topk"), ("moe_group_experts", False), ("moe_norm_gate_logits", True)):
        keys.only(key, supported)
    experts, selected = keys.integer("moe_num_experts", minimum=2, maximum=MOST_EXPERTS), keys.integer("moe_k")
    if selected > experts:
        raise keys.fault("moe_k", f"more than moe_num_experts = {experts}")
    scoring = keys.source.get("scoring_func") or "softmax"
    if scoring not in SCORINGS:
        raise keys.fault("scoring_func", "not supported by this model", expected=" or ".join(SCORINGS))
    last = keys.integer("moe_layer_end_index", -1, minimum=-(10**6))
    return {
        "num_experts": experts,
        "num_selected": selected,
        "expert_size": keys.integer("moe_intermediate_size"),
        # No defaults where the published readers disagree.
        "num_shared_experts": keys.integer("moe_num_shared_experts", minimum=0, maximum=MOST_EXPERTS),
        "first_moe_layer": keys.integer("moe_layer_start_index", minimum=0),
        "last_moe_layer": keys.integer("num_hidden_layers", maximum=MOST_LAYERS) - 1 if last < 0 else last,
        "moe_interval": keys.integer("moe_layer_interval", 1),
        "norm_min": keys.number("moe_norm_min", 1e-12),
        "scoring": scoring,
        "aux_free": keys.flag("moe_use_aux_free", True),
        "num_mtp_layers": keys.integer(MTP_KEY, 0, minimum=0, maximum=MOST_LAYERS),
    }


def read_moe_source(config: MoeConfig) -> dict[str, Any]:
    """The config.json of the model that is built: without multi-token prediction it says so.

    Raises ``ConfigError`` when ``mtp`` is on and the architecture has no such layers.
    """
    source = read_source(config)
    if config.mtp and not source.get(MTP_KEY):
        raise ConfigError.at("model.mtp", f"this architecture has no such layers: {MTP_KEY} is missing or 0")
    return source if config.mtp or not source.get(MTP_KEY) else {**source, MTP_KEY: 0}
