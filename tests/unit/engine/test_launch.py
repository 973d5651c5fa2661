"""The cluster and the device's environment."""

import pytest

from erniecore.engine.launch import apply_environment, paddle_variables, read_cluster
from erniecore.errors import EnvironmentFault
from erniecore.types.run import Cluster


def test_no_launcher_is_one_process():
    assert read_cluster({}) == Cluster()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            "PADDLE_TRAINER_ID=3 PADDLE_TRAINERS_NUM=8 PADDLE_LOCAL_RANK=1 PADDLE_NNODES=4 PADDLE_MASTER=tcp://a:7",
            Cluster(3, 8, 1, 4, "a:7"),
        ),
        (
            "PADDLE_TRAINER_ID=1 PADDLE_TRAINERS_NUM=2 PADDLE_RANK_IN_NODE=1 PADDLE_TRAINER_ENDPOINTS=a:5,a:6",
            Cluster(1, 2, 1, 1, "a:5"),
        ),
        (
            "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=9",
            Cluster(5, 8, 1, 2, "h:9"),
        ),
        (
            "SLURM_PROCID=6 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=2 SLURM_STEP_NUM_NODES=2 SLURM_JOB_ID=41 "
            "SLURM_STEP_NODELIST=node[03-04],b1",
            Cluster(6, 8, 2, 2, "node03:20041"),
        ),
        ("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=1", Cluster()),  # a batch script, not a step of it
        ("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", Cluster()),
    ],
)
def test_launcher_variables(environ, expected):
    assert read_cluster(dict(pair.split("=", 1) for pair in environ.split())) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "x"},
        {"PADDLE_TRAINER_ID": "2", "PADDLE_TRAINERS_NUM": "2"},
        {"PADDLE_TRAINERS_NUM": "0"},
        {"RANK": "0", "WORLD_SIZE": "2"},
    ],
)
def test_impossible_cluster_is_refused(environ):
    with pytest.raises(EnvironmentFault):
        read_cluster(environ)


def test_paddle_reads_any_launcher():
    found = paddle_variables(Cluster(1, 2, 1, 1, "h:9"))
    assert read_cluster(found) == Cluster(1, 2, 1, 1, "h:9")
    assert found["PADDLE_TRAINER_ENDPOINTS"].split(",")[1] == found["PADDLE_CURRENT_ENDPOINT"]


def test_one_process_needs_no_variables():
    assert paddle_variables(Cluster()) == {}


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
