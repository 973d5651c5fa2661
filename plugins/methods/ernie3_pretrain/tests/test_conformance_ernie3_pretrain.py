"""The plugins keep the rules that every method and every format keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("method", "ernie3-pretrain")
def test_method(check):
    check()


@parametrize_checks("format", "knowledge")
def test_format(check):
    check()
