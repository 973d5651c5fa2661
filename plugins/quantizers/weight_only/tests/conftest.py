"""Two equal mixture-of-experts models at toy size."""

import pytest
from erniecore_ernie45_moe.plugin import plugin as moe


@pytest.fixture
def make_moe_model(golden, build):
    fixture = golden("moe")
    return lambda: build(moe, fixture.config, fixture.weights)


@pytest.fixture
def moe_model(make_moe_model):
    return make_moe_model()


@pytest.fixture
def another_moe_model(make_moe_model):
    return make_moe_model()
