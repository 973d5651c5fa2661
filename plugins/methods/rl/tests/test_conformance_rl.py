"""The rules that every method and every reward function keeps."""

import pytest
from erniecore_conformance import Subject, parametrize_checks, run_checks


@parametrize_checks("method", "grpo")
def test_conformance_grpo(check):
    check()


@parametrize_checks("method", "upo")
def test_conformance_upo(check):
    check()


@parametrize_checks("method", "rloo")
def test_conformance_rloo(check):
    check()


@parametrize_checks("method", "online-dpo")
def test_conformance_online_dpo(check):
    check()


@pytest.mark.parametrize("name", ["checklist", "contains", "exact-match", "length-penalty", "numeric", "regex"])
def test_conformance_reward(name):
    outcomes = run_checks(Subject.installed("reward", name))
    assert {o.check: o.detail for o in outcomes if o.status == "failed"} == {}
    assert sum(o.status == "passed" for o in outcomes) >= 20
