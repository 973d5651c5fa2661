"""Two equal mixture-of-experts models at toy size."""

import pytest
from erniecore_ernie45_moe.plugin import plugin as moe


@pytest.fixture
def make_moe_model(golden, build):
    """A new model, always with the same weights."""
    fixture = golden("moe")
    return lambda: build(moe, fixture.config, fixture.weights)
