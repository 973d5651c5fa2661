"""Metrics that are differences of two means."""

from erniecore.engine.scoring.differences import with_differences


def test_a_margin_is_the_difference_of_the_two_mean_rewards():
    assert with_differences({"rewards/chosen": 2.0, "rewards/rejected": -1.0})["rewards/margins"] == 3.0


def test_what_an_objective_reports_itself_stays():
    means = {"rewards/chosen": 2.0, "rewards/rejected": -1.0, "rewards/margins": 5.0}
    assert with_differences(means) == means


def test_half_of_it_is_nothing():
    assert with_differences({"loss": 1.0, "rewards/chosen": 2.0}) == {"loss": 1.0, "rewards/chosen": 2.0}
