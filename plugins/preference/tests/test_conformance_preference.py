"""The plugins keep the rules that every method keeps."""

from erniecore.testing import parametrize_checks


@parametrize_checks("method", "dpo")
def test_conformance_of_dpo(check):
    check()


@parametrize_checks("method", "ipo")
def test_conformance_of_ipo(check):
    check()


@parametrize_checks("method", "hinge")
def test_conformance_of_hinge(check):
    check()


@parametrize_checks("method", "robust")
def test_conformance_of_robust(check):
    check()


@parametrize_checks("method", "dpop")
def test_conformance_of_dpop(check):
    check()


@parametrize_checks("method", "sppo")
def test_conformance_of_sppo(check):
    check()


@parametrize_checks("method", "nca")
def test_conformance_of_nca(check):
    check()


@parametrize_checks("method", "kto-pair")
def test_conformance_of_kto_pair(check):
    check()


@parametrize_checks("method", "simpo")
def test_conformance_of_simpo(check):
    check()


@parametrize_checks("method", "orpo")
def test_conformance_of_orpo(check):
    check()


@parametrize_checks("method", "kto")
def test_conformance_of_kto(check):
    check()
