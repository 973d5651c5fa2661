"""The plugin keeps the rules that every model keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("model", "ernie5")
def test_conformance(check):
    check()
