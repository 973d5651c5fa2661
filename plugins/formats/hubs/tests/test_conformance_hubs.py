"""The plugins keep the rules that every reader keeps."""

import pytest
from erniecore_conformance import assert_conforms


@pytest.mark.parametrize("name", ["hf", "ms"])
def test_conformance(name):
    assert_conforms("reader", name)
