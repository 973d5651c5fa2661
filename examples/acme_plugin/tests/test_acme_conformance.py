"""The rules that every plugin of a kind keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("model", "acme-lm")
def test_model(check):
    check()


@parametrize_checks("method", "acme-dpo")
def test_method(check):
    check()


@parametrize_checks("device", "acme-npu")
def test_device(check):
    check()
