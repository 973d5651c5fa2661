"""When the clock asks for a checkpoint: by default every ten minutes, and seldom enough that it costs little."""

import pytest

from erniecore.engine.training import saving


@pytest.fixture
def saver(maker, monkeypatch):
    """``saver(**checkpoint)``: of a run that begins at second 1000 of a clock, which ``saver.clock`` sets."""
    now = [1000.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])

    def make(**checkpoint):
        run = maker.run(checkpoint=checkpoint)
        made = run.saver
        made.clock = lambda seconds: now.__setitem__(0, 1000.0 + seconds)
        made.state = run.state
        return made

    return make


def due_at(saver, *seconds):
    """Which of these times, counted from the last save, a save is due at."""
    found = []
    for second in seconds:
        saver.clock(second)
        if saver.is_due(1):
            found.append(second)
    return found


def test_a_run_without_settings_saves_every_ten_minutes(saver):
    assert due_at(saver(), 1, 599, 601) == [601]


def test_saves_cost_one_percent_of_the_time_at_most(saver, monkeypatch):
    slow = saver()
    ticks = iter([0.0, 4.0] + [4.0] * 9)  # the copy takes four seconds
    monkeypatch.setattr(saving.time, "perf_counter", lambda: next(ticks))
    slow.step_took(1.0)
    slow.save(slow.state, background=True)
    slow.step_took(5.0)  # beside the save steps take five times as long
    slow.step_took(5.0)
    slow.settle(wait=True)
    assert due_at(slow, 601, 1199, 1201) == [1201]


@pytest.mark.parametrize(("minutes", "expected"), [(2, [121, 700]), (0, [])])
def test_minutes_that_are_named_hold_as_they_are(saver, minutes, expected):
    named = saver(minutes=minutes)
    named._cost = 12.0
    assert due_at(named, 119, 121, 700) == expected
