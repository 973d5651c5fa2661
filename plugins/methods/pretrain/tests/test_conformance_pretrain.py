"""The plugin keeps the rules that every method keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("method", "pt")
def test_conformance(check):
    check()
