"""The conformance kit's checks on this plugin."""

import pytest
from erniecore_conformance import parametrize_checks

pytest.importorskip("swanlab", reason="`make test-clients` has it")


@parametrize_checks("callback", "swanlab")
def test_conformance(check):
    check()
