"""The plugins keep the rules that every quantizer keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("quantizer", "wint8")
def test_wint8(check):
    check()


@parametrize_checks("quantizer", "wint4")
def test_wint4(check):
    check()


@parametrize_checks("quantizer", "wint4-8")
def test_wint4_8(check):
    check()


@parametrize_checks("quantizer", "nf4")
def test_nf4(check):
    check()


@parametrize_checks("quantizer", "bf16")
def test_bf16(check):
    check()
