"""The plugin keeps the rules that every model keeps, also with gates, scaled norms and the further router losses."""

from typing import ClassVar

from erniecore_conformance import parametrize_checks
from erniecore_ernie45_moe.plugin import Ernie45MoePlugin


@parametrize_checks("model", "ernie45-moe")
def test_conformance(check):
    check()


class Scaled(Ernie45MoePlugin):
    conformance_config: ClassVar = {
        "gpas": "straight-through",
        "layer_norm_scaling": True,
        "router_sequence_loss": 0.01,
        "router_similarity_loss": 0.01,
    }


scaled = Scaled()


@parametrize_checks("model", "ernie45-moe", target=f"{__name__}:scaled")
def test_conformance_with_a_scaled_residual_stream(check):
    check()
