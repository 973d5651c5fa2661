"""The plugin keeps the rules that every adapter keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("adapter", "vera")
def test_conformance(check):
    check()
