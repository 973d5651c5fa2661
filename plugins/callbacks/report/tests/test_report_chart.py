"""Geometry of the report's charts."""

from __future__ import annotations

import itertools
import math

import pytest
from erniecore_report.chart import (
    BOTTOM,
    FULL,
    HALF,
    LEFT,
    MAX_POINTS,
    MAX_TARGETS,
    PHONE,
    RIGHT,
    TOP,
    compact,
    log_ticks,
    make_chart,
    nice_ticks,
    running_mean,
    svg_path,
    thin,
)
from hypothesis import given
from hypothesis import strategies as st

finite = st.floats(-1e12, 1e12, allow_nan=False)
series = st.lists(st.tuples(st.integers(0, 10**6), finite), min_size=2, max_size=50, unique_by=lambda p: p[0]).map(
    sorted
)


def coordinates(path):
    return [tuple(map(float, part.split())) for part in path.removeprefix("M").split(" L")]


@given(series, st.booleans())
def test_every_point_lies_inside_the_frame(pairs, zero):
    chart = make_chart("x", pairs, zero=zero)
    for x, y in coordinates(chart.line):
        assert LEFT <= x <= HALF[0] - RIGHT
        assert TOP <= y <= HALF[1] - BOTTOM


@given(series)
def test_higher_values_are_drawn_higher(pairs):
    chart = make_chart("x", pairs)
    drawn = coordinates(chart.line)[: len(pairs)]
    top, bottom = max(pairs, key=lambda p: p[1]), min(pairs, key=lambda p: p[1])
    assert drawn[pairs.index(top)][1] <= drawn[pairs.index(bottom)][1]


def test_steps_run_from_the_left_edge_to_the_right_edge():
    xs = [x for x, _ in coordinates(make_chart("x", [(1, 5.0), (6, 5.0), (11, 5.0)]).line)]
    assert xs == [LEFT, (LEFT + HALF[0] - RIGHT) / 2, HALF[0] - RIGHT]


def test_without_two_finite_values_there_is_no_chart():
    assert make_chart("x", []) is None
    assert make_chart("x", [(1, 2.0)], other=[(9, 1.0)]) is None
    assert make_chart("x", [(1, math.nan), (2, math.inf)]) is None


def test_values_that_are_not_finite_are_marked_and_not_drawn():
    chart = make_chart("x", [(1, 1.0), (2, math.nan), (3, 2.0)])
    assert len(coordinates(chart.line)) == 2
    assert chart.holes == [(LEFT + HALF[0] - RIGHT) / 2]


def test_an_axis_over_many_powers_of_ten_is_logarithmic():
    assert make_chart("x", [(1, 1e-3), (2, 1e3)]).log
    assert not make_chart("x", [(1, 1.0), (2, 900.0)]).log
    assert not make_chart("x", [(1, 0.0), (2, 1e9)]).log


def test_a_single_point_is_drawn_as_a_dot():
    assert svg_path([(3, 4)]) == "M3 4 L3 4"


@pytest.mark.parametrize("size", [HALF, PHONE, FULL])
@pytest.mark.parametrize("steps", [7, 1000, 12_500, 99_999, 3_000_000])
def test_labels_stay_inside_the_picture_in_the_size_that_phones_have(size, steps):
    chart = make_chart("x", [(0, 1e-5), (steps, 123.4)], size=size)
    for tick in chart.x_ticks:
        width = len(tick.label) * 7.3  # 13 pixels high, tabular digits
        right = tick.at + width / 2 if tick.anchor == "middle" else tick.at
        assert 0 <= right - width < right <= size[0]
    assert all(len(tick.label) * 7.3 <= LEFT for tick in chart.y_ticks)


def test_evaluations_alone_make_a_chart():
    chart = make_chart("loss", [], other=[(5, 1.0), (9, 0.5)])
    assert (len(chart.dots), chart.last, chart.line) == (2, "0.5", "")


def test_a_long_curve_is_thinned_but_keeps_its_spikes():
    pairs = [(i, 1.0) for i in range(50_000)]
    pairs[33_333] = (33_333, 9.0)
    thinned = thin(pairs, MAX_POINTS)
    assert len(thinned) <= MAX_POINTS
    assert (33_333, 9.0) in thinned


def test_a_long_curve_has_few_places_to_point_at():
    assert len(make_chart("x", [(i, float(i)) for i in range(10_000)]).targets) <= MAX_TARGETS


def test_places_to_point_at_tile_the_frame():
    targets = make_chart("x", [(i, float(i % 7)) for i in range(40)]).targets
    assert targets[0].left == LEFT
    assert targets[-1].left + targets[-1].width == pytest.approx(HALF[0] - RIGHT, abs=0.02)
    for one, two in itertools.pairwise(targets):
        assert one.left + one.width == pytest.approx(two.left, abs=0.02)


def test_the_running_mean_of_a_constant_is_that_constant():
    assert [y for _, y in running_mean([(i, 2.5) for i in range(9)], 4)] == [2.5] * 9


def test_the_running_mean_is_centered():
    assert running_mean([(0, 0.0), (1, 3.0), (2, 6.0), (3, 0.0)], 3)[1:3] == [(1, 3.0), (2, 3.0)]


@given(finite, finite)
def test_ticks_are_few_and_inside(a, b):
    low, high = min(a, b), max(a, b)
    if high - low < 1e-6 * max(1, abs(low), abs(high)):
        return
    ticks = nice_ticks(low, high)
    assert 1 <= len(ticks) <= 11
    slack = (high - low) * 1e-6
    assert all(low - slack <= tick <= high + slack for tick in ticks)


def test_logarithmic_ticks_are_powers_of_ten():
    assert log_ticks(0.02, 300) == pytest.approx([0.1, 1, 10, 100])
    assert len(log_ticks(1e-12, 1e12)) <= 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (5.0, "5"),
        (0.52134, "0.5213"),
        (1240, "1240"),
        (22_500, "22.5k"),
        (3_100_000, "3.1M"),
        (3e-5, "3e-5"),
        (-1.25e-7, "-1.25e-7"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_short(value, text):
    assert compact(value) == text
