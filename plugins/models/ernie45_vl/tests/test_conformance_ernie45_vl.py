"""The plugin keeps the rules that every model keeps, also with gates and scaled norms."""

from typing import ClassVar

from erniecore_conformance import parametrize_checks
from erniecore_ernie45_vl.plugin import Ernie45VlPlugin


@parametrize_checks("model", "ernie45-vl")
def test_conformance(check):
    check()


class Scaled(Ernie45VlPlugin):
    conformance_config: ClassVar = {"gpas": "straight-through", "layer_norm_scaling": True}


scaled = Scaled()


@parametrize_checks("model", "ernie45-vl", target=f"{__name__}:scaled")
def test_conformance_with_a_scaled_residual_stream(check):
    check()
