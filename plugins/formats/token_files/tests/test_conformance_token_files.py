"""The plugin keeps the rules that every corpus keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("corpus", "token-files")
def test_conformance(check):
    check()
