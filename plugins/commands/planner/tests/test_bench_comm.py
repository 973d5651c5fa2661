"""Latency and bandwidth from measured times."""

import pytest
from erniecore_planner.layout_time import all_gather, all_reduce
from erniecore_planner.measure_comm import FACTORS, SIZES, fitted


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_times_of_the_formula_give_its_constants(processes):
    link = (25e-6, 3e9)
    times = {"all_reduce": all_reduce, "all_gather": all_gather}
    rows = [
        {"what": what, "bytes": size, "seconds": times[what](size, processes, link)}
        for size in SIZES
        for what in FACTORS
    ]
    assert fitted(rows, processes) == pytest.approx(link)


def test_constants_are_positive_whatever_was_measured():
    rows = [
        {"what": "all_gather", "bytes": 4096, "seconds": 1.0},
        {"what": "all_gather", "bytes": 1 << 20, "seconds": 0.1},
    ]
    latency, bandwidth = fitted(rows, 2)
    assert latency > 0
    assert bandwidth > 0
