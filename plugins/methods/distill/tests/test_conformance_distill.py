"""The plugin keeps the rules that every method keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("method", "distill")
def test_conformance_of_distill(check):
    check()
