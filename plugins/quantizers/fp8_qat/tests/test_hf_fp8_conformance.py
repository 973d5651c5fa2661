"""The exporter keeps the rules of its kind."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("exporter", "hf-fp8")
def test_conformance(check):
    check()
