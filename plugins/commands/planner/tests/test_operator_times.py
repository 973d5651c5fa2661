"""Seconds of steps from costs of operators: what they add up to, what a layout leaves of them, and how runs correct them."""

from dataclasses import replace

import pytest
from erniecore_planner.activations import Work
from erniecore_planner.data_rates import DataRate, ServeRate, percentile, serving, starting_seconds
from erniecore_planner.operators import CLASSES, UNITS, Costs, Load, Timed, between, cut, factors, step_parts
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.types.shape import DecoderShape, LayerShape

PLACE = ("cpu", "processor X, threads 1", "float32", "2026-01-02")
COSTS = Costs(*PLACE, ((8, 1e10), (512, 1e11)), ((256, 1e11, 2e10),), dict.fromkeys(UNITS, 1e-9))
DENSE = DecoderShape(256, 4096, True, (LayerShape(8, 2, 64, 768),) * 4)
MOE = replace(DENSE, layers=(LayerShape(8, 2, 64, 256, experts=16, selected=4, expert=128),) * 4)
WORK, LOAD = Work(tokens=2048, length=1024), Load(micro_batches=1, trained=4e6)


def total(shape=DENSE, work=WORK, load=LOAD):
    return sum(step_parts(shape, work, load, COSTS).values())


def test_products_are_counted_three_times_at_the_rate_of_their_size():
    parts = step_parts(DENSE, WORK, LOAD, COSTS)
    weights = 4 * (2 * 256 * 64 * 10 + 3 * 256 * 768)
    wide = 6.0 * 2048 * (weights - 4 * 2 * 256 * 128 + 256 * 4096) / COSTS.product(256)
    thin = 6.0 * 2048 * 4 * 2 * 256 * 128 / COSTS.product(128)
    assert parts["products"] == pytest.approx(wide + thin)


def test_a_frozen_base_costs_less_and_recomputation_and_references_more():
    adapted = replace(LOAD, adapter=100_000, updates=28, trained=100_000)
    work = replace(WORK, ranks=28 * 8, head_trained=False)
    assert total(work=work, load=adapted) < total() < total(work=replace(WORK, recompute="attention"))
    assert total(work=replace(WORK, recompute="attention")) < total(work=replace(WORK, recompute="full"))
    assert total() < total(load=replace(LOAD, reference=1)) < 1.5 * total()


def test_accumulation_multiplies_all_but_the_update():
    once, four = (step_parts(DENSE, WORK, replace(LOAD, micro_batches=n), COSTS) for n in (1, 4))
    assert four["products"] == pytest.approx(4 * once["products"])
    assert once["update"] < four["update"] < 4.001 * once["update"]


@pytest.mark.parametrize("shape", [DENSE, MOE])
def test_two_tensor_ranks_have_half_of_the_products_each(shape):
    whole = step_parts(shape, WORK, LOAD, COSTS)
    half = step_parts(cut(shape, 0, 4, 2, 1), WORK, replace(LOAD, routed=0.5), COSTS)
    assert half["attention"] == pytest.approx(whole["attention"] / 2)
    assert half["products"] < whole["products"]
    assert half["experts"] <= whole["experts"] / 2


def test_stages_add_up_to_the_whole():
    first = step_parts(cut(DENSE, 0, 1, 1, 1), WORK, replace(LOAD, last=False, trained=1e6), COSTS)
    last = step_parts(cut(DENSE, 1, 4, 1, 1), WORK, replace(LOAD, first=False, trained=3e6), COSTS)
    whole = step_parts(DENSE, WORK, LOAD, COSTS)
    for name in set(CLASSES) - {"calls"}:
        assert first[name] + last[name] == pytest.approx(whole[name])


def test_rates_between_measured_sizes_lie_between_them():
    points = [(8.0, 1e10), (512.0, 1e11)]
    assert between(points, 1) == 1e10
    assert 1e10 < between(points, 64) < 1e11
    assert between(points, 10**6) == 1e11


@settings(max_examples=20)
@given(
    st.dictionaries(st.sampled_from(CLASSES), st.floats(0.5, 2), min_size=len(CLASSES)),
    st.lists(st.lists(st.floats(0.01, 1), min_size=len(CLASSES), max_size=len(CLASSES)), min_size=12, max_size=12),
)
def test_factors_bring_predictions_nearer_to_what_runs_took(wrong, rows):
    def run(row):
        parts = dict(zip(CLASSES, row, strict=True))
        return Timed(*PLACE, "", "", parts, sum(wrong[c] * v for c, v in parts.items()))

    runs = [run(row) for row in rows]
    found = factors(runs)

    def off(own):
        return sum((sum(own[c] * v for c, v in r.parts.items()) / r.seconds - 1) ** 2 for r in runs)

    assert off(found) <= off(dict.fromkeys(CLASSES, 1.0)) + 1e-9


def test_without_runs_operators_stand_as_they_were_measured():
    assert factors([]) == dict.fromkeys(CLASSES, 1.0)


def test_a_percentile_is_a_value_that_was_there():
    assert [percentile([3.0, 1.0, 2.0, 4.0], share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 2.0, 4.0, 4.0]


def test_answers_of_a_larger_model_are_slower_by_its_parameters():
    rate = ServeRate(
        *PLACE, "m", 10, ((128, 1000.0), (512, 900.0)), ((1, 128, 50.0, 0.02, 0.03), (8, 512, 200.0, 0.04, 0.05))
    )
    assert serving(rate, 10, 1, 128) == (1000.0, 50.0)
    assert serving(rate, 20, 8, 600) == (450.0, 100.0)


def test_data_is_read_and_packed_before_the_first_step():
    rate = DataRate(*PLACE, 0, 1e6, 1e3, 2e5, 1e6, 1e6, 5.0, 100.0, 0.9)
    assert starting_seconds(rate, 5_000_000) == pytest.approx(5.0 + 1.0)
