"""The plugins keep the rules that every method and format keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("method", "next-group")
def test_method(check):
    check()


@parametrize_checks("format", "parts")
def test_format(check):
    check()
