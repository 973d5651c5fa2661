"""The plugin keeps the rules that every parallel strategy keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("parallel", "wan")
def test_conformance(check):
    check()
