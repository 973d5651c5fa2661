"""The conformance kit's checks on this plugin."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("callback", "activations")
def test_conformance(check):
    check()
