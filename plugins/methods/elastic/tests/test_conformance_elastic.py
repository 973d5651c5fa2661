"""The plugins keep the rules that every method keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("method", "elastic-pt")
def test_conformance_of_pretraining(check):
    check()


@parametrize_checks("method", "elastic-sft")
def test_conformance_of_fine_tuning(check):
    check()
