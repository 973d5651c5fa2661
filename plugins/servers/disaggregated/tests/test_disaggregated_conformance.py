"""The server keeps the rules of its kind."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("server", "disaggregated")
def test_conformance(check):
    check()
