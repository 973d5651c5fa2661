"""Toy models, dense and with experts, as their golden files have them."""

import pytest
from erniecore_ernie45.plugin import plugin as dense
from erniecore_ernie45_moe.plugin import plugin as moe


@pytest.fixture
def make_model(golden, build):
    """``make_model("moe")`` or ``make_model("dense")``: a new model, always with the same weights."""

    def make(name):
        fixture = golden(name)
        return build({"moe": moe, "dense": dense}[name], fixture.config, fixture.weights)

    return make
