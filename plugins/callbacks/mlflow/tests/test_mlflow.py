"""The callback's database is read back with MLflow's own client, after sessions of a run that was stopped and continued."""

from functools import partial

import pytest
from erniecore_mlflow.plugin import plugin
from logged_sessions import asked_by_a_session, log_session, step

from erniecore.api import EnvironmentFault

pytest.importorskip("mlflow", reason="`make test-clients` has it")

session = partial(log_session, plugin)


def sessions(directory):
    """Name, status, tags, parameters and curves of each run of MLflow, by name."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{directory / 'mlflow.db'}")
    [experiment] = [e for e in client.search_experiments() if e.name == "erniecore"]
    found = []
    for run in client.search_runs([experiment.experiment_id]):
        histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        curves = {name: {point.step: point.value for point in points} for name, points in histories.items()}
        found.append((run.info.run_name, run.info.status, run.data.tags["erniecore.run"], run.data.params, curves))
    return sorted(found, key=lambda one: one[0])


def test_sessions_have_the_metrics_of_the_events_and_the_settings(tmp_path, capfd):
    out = tmp_path / "mine"
    session(out, step(1, **{"load %": 0.5}), {"event": "eval", "step": 1, "loss": 2.0}, step(2, lr=float("nan")))
    session(out, step(2, loss=0.25), done=1)
    [first, second] = sessions(out / "mlflow")
    assert (first[0], second[0]) == ("mine", "mine-from-step-00000001")
    assert first[1:3] == second[1:3] == ("FINISHED", "mine")
    assert first[3]["train.batch_size"] == "1"
    assert first[4] == {"train/loss": {1: 1.0, 2: 0.5}, "train/load _": {1: 0.5}, "eval/loss": {1: 2.0}}
    assert second[4] == {"train/loss": {2: 0.25}}
    assert capfd.readouterr() == ("", "")


def test_a_server_that_is_not_there_is_an_error_with_its_address(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(EnvironmentFault, match="MLflow could not begin a run") as caught:
        session(tmp_path / "run", tracking_uri="http://127.0.0.1:9")
    assert caught.value.where == "http://127.0.0.1:9"


def test_nobody_is_asked_for_anything(tmp_path):
    """Not even what the library tells its maker about its use."""
    assert asked_by_a_session("mlflow", tmp_path / "run") == []
