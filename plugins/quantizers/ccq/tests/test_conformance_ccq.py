"""Both plugins keep the rules that every quantizer keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("quantizer", "ccq-2.5")
def test_ccq25(check):
    check()


@parametrize_checks("quantizer", "ccq-2.06")
def test_ccq206(check):
    check()
