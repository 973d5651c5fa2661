"""The plugins keep the rules that every method keeps. Pairs have one encoder and one objective, single completions another:
``dpo`` and ``kto`` pass all checks, the other losses those that a loss alone can break."""

import pytest
from erniecore_conformance import assert_conforms, parametrize_checks

#: checks whose outcome depends on the loss over pairs
OF_THE_LOSS = (
    "method_loss_is_finite",
    "method_reports_its_loss",
    "method_ignores_packing",
    "method_ignores_micro_batches",
    "method_gradient_is_the_slope",
    "method_survives_extreme_logits",
    "method_leaves_reference_alone",
    "method_can_overfit",
)


@parametrize_checks("method", "dpo")
def test_conformance_of_dpo(check):
    check()


@parametrize_checks("method", "kto")
def test_conformance_of_kto(check):
    check()


@pytest.mark.parametrize("name", ["ipo", "hinge", "robust", "dpop", "sppo", "nca", "kto-pair", "simpo", "orpo"])
def test_conformance_of_a_further_loss(name):
    assert_conforms("method", name, only=OF_THE_LOSS)
