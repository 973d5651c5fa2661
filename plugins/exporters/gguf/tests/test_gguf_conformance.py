"""The exporter keeps the rules of its kind."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("exporter", "gguf")
def test_conformance(check):
    check()
