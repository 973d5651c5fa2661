"""What several processes died of: which error is shown, and how it comes back from a rank's file."""

import json
from pathlib import Path

import pytest

from erniecore.engine.processes.exits import restored, result
from erniecore.engine.worker import describe
from erniecore.errors import ConfigError, DataError, EnvironmentFault, ErnieError, Exit, Preempted
from erniecore.signals import InterruptedTwice
from erniecore.types.launcher import RankExit

OUT = Path("out")


def ended(rank, error, when, *, ours=False):
    record = json.loads(json.dumps(describe(error)))  # as it travels
    return RankExit(rank, record["exit"], when, record, stopped=ours)


LOST = EnvironmentFault("lost contact", code="ERN-E021")


@pytest.mark.parametrize(
    "error",
    [
        DataError("a bad row", where="a.jsonl:3", found="x", fix="mend it", code="ERN-D060"),
        Preempted("stopped by SIGTERM after step 3", fix="the same command continues"),
        LOST,
    ],
)
def test_an_error_comes_back_as_it_was_with_its_rank(error):
    found = restored(ended(1, error, 0.0), OUT)
    assert type(found) is type(error)
    assert (found.message, found.code, found.exit_code, found.fix) == (
        error.message,
        error.code,
        error.exit_code,
        error.fix,
    )
    assert "rank 1, out/logs/rank-1.out" in found.where


def test_problems_of_settings_come_back():
    found = restored(ended(0, ConfigError.at("parallel.data", "too many"), 0.0), OUT)
    assert [(p.key, p.message) for p in found.problems] == [("parallel.data", "too many")]


def test_a_bug_is_called_one():
    found = restored(ended(0, ZeroDivisionError("division by zero"), 0.0), OUT)
    assert type(found) is ErnieError
    assert found.message == "ZeroDivisionError: division by zero"
    assert found.exit_code == Exit.BUG


def test_interrupted_twice_stays_an_interrupt():
    assert isinstance(restored(ended(0, InterruptedTwice(), 0.0), OUT), KeyboardInterrupt)


def test_a_signal_is_named():
    found = restored(RankExit(1, -9, 0.0, {}), OUT)
    assert "killed by SIGKILL" in found.message
    assert found.code == "ERN-E020"


def test_the_earliest_cause_is_shown_not_its_consequences():
    first = ended(2, DataError("a bad row"), 5.0)
    with pytest.raises(DataError):
        result([ended(0, LOST, 1.0), ended(1, DataError("a later one"), 9.0), first], OUT)
    with pytest.raises(EnvironmentFault, match="killed by SIGKILL"):
        result([ended(0, LOST, 1.0), RankExit(1, -9, 2.0, {})], OUT)


def test_a_rank_that_had_to_be_ended_is_named():
    with pytest.raises(EnvironmentFault) as caught:
        result([ended(0, LOST, 1.0), RankExit(1, -9, 2.0, {}, stopped=True)], OUT)
    assert caught.value.code == "ERN-E021"
    assert "rank 1 no longer answered" in caught.value.fix


def test_all_well_gives_the_metrics_of_rank_0():
    assert result([RankExit(0, 0, 0.0, {"metrics": {"loss": 1.0}}), RankExit(1, 0, 0.0, {})], OUT) == {"loss": 1.0}
