"""What experiments on papers count and judge by, on numbers that are known."""

from itertools import islice

import pytest

from benchmarks.papers import controllable, controllable_length, progressive, shared_trunk
from benchmarks.papers.common import Found, Results


def test_flops_by_hand():
    """Two layers of 48 with an MLP of 128 and a head of 512: a window of 2 has 3 pairs, of 4 10."""
    weights = 2 * (4 * 48 * 48 + 3 * 48 * 128) + 48 * 512
    assert progressive.sequence_flops(4, 4) == 6 * weights * 4 + 12 * 2 * 48 * 10
    assert progressive.sequence_flops(4, 2) == 6 * weights * 4 + 12 * 2 * 48 * 6
    assert progressive.sequence_flops(5, 2) == 6 * weights * 5 + 12 * 2 * 48 * 7


def test_arms_read_as_many_sequences_and_growing_ones_in_more_steps():
    whole = 100 * progressive.ROWS * progressive.MICRO
    counts = {}
    for name, arm in progressive.ARMS.items():
        counts[name] = progressive.steps_of(arm, 100)
        costs = list(islice(progressive.costs(arm, 100), counts[name]))
        rows = sum(cost.rows for cost in costs)
        assert whole <= rows < whole + progressive.ROWS * progressive.MICRO
        assert costs[-1].flops == progressive.ROWS * progressive.MICRO * progressive.sequence_flops(256, 256)
    assert counts == {"fixed": 100, "fixed, long warm-up": 100, "progressive": 111}
    first = next(progressive.costs(progressive.ARMS["progressive"], 100))
    assert first == (2, 2 * progressive.sequence_flops(256, 32))


def test_curves_are_read_between_their_points():
    curve = [(1.0, 6.0), (2.0, 5.0), (4.0, 4.0)]
    assert progressive.reached(curve, 5.5) == 1.5
    assert progressive.reached(curve, 4.25) == 3.5
    assert [progressive.reached(curve, target) for target in (7.0, 3.0)] == [1.0, 4.0]
    assert [progressive.at(curve, x) for x in (0.0, 1.5, 3.0, 9.0)] == [6.0, 5.5, 4.5, 4.0]


def test_the_language_says_its_topics_and_is_that_of_the_seed():
    language = controllable.Language(3)
    rows = [language.row() for _ in range(200)]
    again = controllable.Language(3)
    assert [again.row() for _ in range(200)] == rows
    assert controllable.Language(4).row() != rows[0]
    assert [language.topic_of(row["body"]) for row in rows] == [row["topic"] for row in rows]
    counts = {len(row["body"].split()) for row in rows}
    assert (min(counts), max(counts)) == (controllable.SHORTEST, controllable.LONGEST)
    assert language.topic_of("nothing known") == ""


def results(arms, measures, **changed):
    """Three seeds in which every measure is 1 and a little more in each seed, but for ``changed`` ``arm|measure``."""
    values = {
        (arm, seed): {one: changed.get(f"{arm}|{one}", 1.0) + 0.001 * seed * (one == measures[0]) for one in measures}
        for arm in arms
        for seed in (1, 2, 3)
    }
    return Results({key: Found(found) for key, found in values.items()})


@pytest.mark.parametrize(("loss", "verdict"), [(1.009, "seen"), (0.9, "seen"), (1.02, "contrary")])
def test_one_percent_of_the_perplexity(loss, verdict):
    known = controllable.EXPERIMENT
    found = results(known.arms, list(known.measures), **{f"{controllable.CONTROLLABLE}|loss without": loss})
    assert controllable.judge(found)[0] == verdict


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ((1, 2, 3, 4, 5), "seen"),
        ((1, 2, 2, 4, 5), "seen"),
        ((1, 3, 2, 4, 5), "not seen"),
        ((5, 4, 3, 2, 1), "contrary"),
    ],
)
def test_errors_that_grow_with_the_length(errors, verdict):
    known = controllable_length.EXPERIMENT
    changed = {
        f"{controllable_length.ASKED}|{controllable_length.measure(length)}": float(error)
        for length, error in zip(controllable_length.LENGTHS, errors, strict=True)
    }
    assert controllable_length.judge(results(known.arms, list(known.measures), **changed))[0] == verdict


@pytest.mark.parametrize(
    ("nlu_in_generation", "nlg_in_understanding", "verdict"),
    [(1.5, 1.5, "seen"), (1.5, 1.0, "not seen"), (1.5, 0.5, "contrary")],
)
def test_a_shared_trunk_must_win_both_probes(nlu_in_generation, nlg_in_understanding, verdict):
    known = shared_trunk.EXPERIMENT
    changed = {
        f"{shared_trunk.NLU}|{shared_trunk.PROBE_NLG}": nlu_in_generation,
        f"{shared_trunk.NLG}|{shared_trunk.PROBE_NLU}": nlg_in_understanding,
    }
    assert shared_trunk.judge(results(known.arms, list(known.measures), **changed))[0] == verdict


@pytest.mark.parametrize(("flops", "verdict"), [(0.5, "seen"), (1.0, "not seen"), (2.0, "contrary")])
def test_progressive_learning_is_judged_against_the_better_fixed_run(flops, verdict):
    known = progressive.EXPERIMENT
    changed = {"progressive|GFLOP to the loss": flops, "fixed|GFLOP to the loss": 1.5}
    found = progressive.judge(results(known.arms, list(known.measures), **changed))
    assert found[0] == verdict
    assert "*fixed, long warm-up*" in found[1]
