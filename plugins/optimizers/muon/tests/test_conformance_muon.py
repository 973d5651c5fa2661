"""The plugin keeps the rules that every optimizer keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("optimizer", "muon")
def test_conformance(check):
    check()
