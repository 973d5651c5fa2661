"""Orders of pipelines: they end, do every pass once, wait as long and keep as much as the formulas say."""

import pytest
from erniecore_hybrid_parallel.schedules import Action, bubble, max_in_flight, schedule
from erniecore_hybrid_parallel.simulation import ScheduleError, Simulation, simulate
from hypothesis import given, settings
from hypothesis import strategies as st

few = settings(deadline=None, max_examples=60)
stages, chunks, micros = st.integers(2, 7), st.integers(1, 4), st.integers(1, 20)


def orders(stages, chunks, micros):
    return [schedule(stage, stages, chunks, micros) for stage in range(stages)]


@few
@given(stages, chunks, micros)
def test_every_pass_runs_once_without_a_deadlock(stages, chunks, micros):
    simulate(orders(stages, chunks, micros), chunks, micros)


@few
@given(stages, chunks, micros, st.randoms(use_true_random=False))
def test_no_times_make_a_deadlock_or_swap_messages(stages, chunks, micros, rng):
    forward, backward = ([rng.random() for _ in range(stages * chunks)] for _ in "fb")
    Simulation(
        orders(stages, chunks, micros), chunks, micros, forward=forward, backward=backward, message=rng.random()
    ).run()


@few
@given(stages, micros, st.floats(0.5, 3))
def test_idle_time_of_1f1b(stages, micros, backward):
    found = simulate(orders(stages, 1, micros), 1, micros, backward=backward)
    assert found.bubble == pytest.approx(bubble(stages, 1, micros))


@few
@given(stages, st.integers(2, 4), st.integers(1, 4), st.floats(0.5, 3))
def test_chunks_divide_the_idle_time(stages, chunks, groups, backward):
    micros = groups * stages
    found = simulate(orders(stages, chunks, micros), chunks, micros, backward=backward)
    assert found.bubble == pytest.approx(bubble(stages, chunks, micros))
    alone = simulate(orders(stages, 1, micros), 1, micros, backward=backward)
    idle, whole = found.seconds - max(found.busy), alone.seconds - max(alone.busy)
    assert idle == pytest.approx(whole / chunks)


@few
@given(stages, chunks, micros)
def test_activations_that_are_kept(stages, chunks, micros):
    found = simulate(orders(stages, chunks, micros), chunks, micros)
    most = [max_in_flight(stage, stages, chunks, micros) for stage in range(stages)]
    if chunks == 1 or micros % stages == 0:
        assert list(found.alive) == most
    assert all(one <= bound for one, bound in zip(found.alive, most, strict=True))


def test_a_deadlock_is_found():
    broken = [
        [Action(True, 0, 0), Action(False, 0, 0), Action(True, 1, 0), Action(False, 1, 0)],
        [Action(True, 0, 0), Action(True, 1, 0), Action(False, 0, 0), Action(False, 1, 0)],
    ]
    with pytest.raises(ScheduleError, match=r"nothing goes on: stage 0 at B0\.0, stage 1 at F1\.0"):
        simulate(broken, 1, 2)


def test_messages_in_another_order_are_found():
    broken = orders(2, 1, 2)
    broken[1] = [Action(f, 1 - micro, chunk) for f, micro, chunk in broken[1]]
    with pytest.raises(ScheduleError, match=r"stage 1: F1\.0 would read what micro-batch 0 sent"):
        simulate(broken, 1, 2)


def test_a_pass_that_is_left_out_is_found():
    with pytest.raises(ScheduleError, match="2 of 3 passes are done"):
        simulate(orders(2, 1, 2), 1, 3)


def test_a_pass_that_comes_twice_is_found():
    broken = [order + order for order in orders(2, 1, 1)]
    with pytest.raises(ScheduleError, match="comes twice"):
        simulate(broken, 1, 1)
