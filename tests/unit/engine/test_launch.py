"""The cluster and the device's environment."""

import pytest

from erniecore.engine.launch import apply_environment, read_cluster
from erniecore.errors import EnvironmentFault
from erniecore.types import Cluster


def test_no_launcher_is_one_process():
    assert read_cluster({}) == Cluster()


def test_launcher_variables():
    environ = {"PADDLE_TRAINER_ID": "3", "PADDLE_TRAINERS_NUM": "8", "PADDLE_LOCAL_RANK": "1", "PADDLE_NNODES": "4"}
    assert read_cluster(environ) == Cluster(rank=3, world_size=8, local_rank=1, num_nodes=4)


@pytest.mark.parametrize(
    "environ",
    [{"PADDLE_TRAINER_ID": "x"}, {"PADDLE_TRAINER_ID": "2", "PADDLE_TRAINERS_NUM": "2"}, {"PADDLE_TRAINERS_NUM": "0"}],
)
def test_impossible_cluster_is_refused(environ):
    with pytest.raises(EnvironmentFault):
        read_cluster(environ)


def test_missing_values_are_set_before_paddle():
    environ = {"KEPT": "1"}
    assert apply_environment({"B": "2", "A": "1"}, environ, paddle_imported=False) == []
    assert environ == {"KEPT": "1", "A": "1", "B": "2"}


def test_values_of_the_user_stay_and_are_reported():
    environ = {"A": "user"}
    (warning,) = apply_environment({"A": "1"}, environ, paddle_imported=False)
    assert environ == {"A": "user"}
    assert "A=user" in warning


def test_after_paddle_nothing_is_set_and_that_is_reported():
    environ = {}
    (warning,) = apply_environment({"A": "1"}, environ, paddle_imported=True)
    assert environ == {}
    assert "A=1" in warning


def test_equal_value_is_no_news():
    assert apply_environment({"A": "1"}, {"A": "1"}, paddle_imported=True) == []
