"""The plugins keep the rules that every quantizer keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("quantizer", "gptq")
def test_gptq(check):
    check()


@parametrize_checks("quantizer", "awq")
def test_awq(check):
    check()


@parametrize_checks("quantizer", "fp8-ptq")
def test_fp8_ptq(check):
    check()


@parametrize_checks("quantizer", "w8a8")
def test_w8a8(check):
    check()


@parametrize_checks("quantizer", "w4a8")
def test_w4a8(check):
    check()


@parametrize_checks("quantizer", "kv-cache")
def test_kv_cache(check):
    check()
