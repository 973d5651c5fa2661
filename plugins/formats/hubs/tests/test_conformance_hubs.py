"""The plugin keeps the rules that every reader keeps."""

from erniecore_conformance import assert_conforms


def test_conformance():
    assert_conforms("reader", "hf")
