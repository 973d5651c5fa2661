"""The plugin keeps the rules that every importer keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("importer", "llamafactory")
def test_conformance_of_llamafactory(check):
    check()
