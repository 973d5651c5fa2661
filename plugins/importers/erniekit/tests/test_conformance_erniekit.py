"""The plugin keeps the rules that every importer keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("importer", "erniekit")
def test_conformance_of_erniekit(check):
    check()
