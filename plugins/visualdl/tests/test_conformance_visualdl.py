"""The plugin keeps the rules that every callback keeps."""

from erniecore.testing import parametrize_checks


@parametrize_checks("callback", "visualdl")
def test_conformance(check):
    check()
