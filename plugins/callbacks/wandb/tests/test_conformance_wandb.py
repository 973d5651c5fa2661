"""The conformance kit's checks on this plugin."""

import pytest
from erniecore_conformance import parametrize_checks

pytest.importorskip("wandb", reason="`make test-clients` has it")


@parametrize_checks("callback", "wandb")
def test_conformance(check):
    check()
