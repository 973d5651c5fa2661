"""The plugins keep the rules that every quantizer keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("quantizer", "fp8-qat")
def test_fp8_qat(check):
    check()


@parametrize_checks("quantizer", "fp8-block")
def test_fp8_block(check):
    check()


@parametrize_checks("quantizer", "w8a8-qat")
def test_w8a8_qat(check):
    check()


@parametrize_checks("quantizer", "w4a8-qat")
def test_w4a8_qat(check):
    check()
