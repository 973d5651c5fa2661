"""The rules that every method plugin keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("method", "focal")
def test_conformance(check):
    check()
