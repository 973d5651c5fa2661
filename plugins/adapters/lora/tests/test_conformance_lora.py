"""The four plugins keep the rules that every adapter keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("adapter", "lora")
def test_lora(check):
    check()


@parametrize_checks("adapter", "rslora")
def test_rslora(check):
    check()


@parametrize_checks("adapter", "lora-plus")
def test_lora_plus(check):
    check()


@parametrize_checks("adapter", "dora")
def test_dora(check):
    check()
