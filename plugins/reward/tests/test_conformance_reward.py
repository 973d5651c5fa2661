"""The plugins keep the rules that their kinds keep."""

from erniecore.testing import parametrize_checks


@parametrize_checks("method", "reward")
def test_conformance_of_reward(check):
    check()


@parametrize_checks("command", "score")
def test_conformance_of_score(check):
    check()
