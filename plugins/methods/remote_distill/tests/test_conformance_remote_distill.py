"""The plugin keeps the rules that every method keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("method", "remote-distill")
def test_conformance_of_remote_distill(check):
    check()
