"""The file of measured rates."""

import json
from dataclasses import replace

import pytest
from erniecore_planner.cost_files import make_timed
from erniecore_planner.rates import (
    LinkRate,
    Rate,
    best_rate,
    identity,
    links_file,
    rates_file,
    read_links,
    read_rates,
    store_link,
    store_rate,
)

from erniecore.errors import CheckpointError

RATE = Rate("cpu", "processor X, threads 2", "float32", 1e11, (512, 512, 512), "2026-01-02")


def test_a_rate_comes_back_as_it_was_stored(tmp_path):
    path = tmp_path / "a" / "rates.json"
    store_rate(path, RATE)
    assert read_rates(path) == [RATE]


def test_a_new_measurement_replaces_the_old_one_and_no_other(tmp_path):
    path = tmp_path / "rates.json"
    other = replace(RATE, machine="processor Y, threads 2")
    for rate in (RATE, other, replace(RATE, flops=2e11)):
        store_rate(path, rate)
    assert {rate.machine: rate.flops for rate in read_rates(path)} == {RATE.machine: 2e11, other.machine: 1e11}


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"device": "cpu"}]', '{"a": 1}'])
def test_a_file_of_no_use_is_no_rate_and_no_error(tmp_path, text):
    path = tmp_path / "rates.json"
    path.write_text(text)
    assert read_rates(path) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="storing a measured rate"):
        store_rate(tmp_path / "file" / "rates.json", RATE)


def test_rates_of_other_machines_and_dtypes_do_not_count():
    assert best_rate([RATE], "cpu", "float32", RATE.machine) == RATE
    assert best_rate([RATE], "cpu", "float32", "processor Y, threads 2") is None
    assert best_rate([RATE], "cpu", "bfloat16", RATE.machine) is None
    assert best_rate([RATE], "cuda", "float32") is None


def test_without_a_machine_the_newest_counts():
    newer = replace(RATE, machine="name H100", day="2026-02-01")
    assert best_rate([newer, RATE], "cpu", "float32") == newer


def test_identity_names_no_host():
    facts = {"processor": "X", "threads": "2", "memory": "23 GiB", "host": "secret"}
    assert identity(facts) == "processor X, threads 2"


def test_the_file_is_in_the_cache_directory():
    assert str(rates_file({"XDG_CACHE_HOME": "/c", "HOME": "/h"})) == "/c/erniecore/rates.json"
    assert str(rates_file({"HOME": "/h"})) == "/h/.cache/erniecore/rates.json"


def test_links_are_kept_per_number_of_processes(tmp_path):
    path = links_file({"XDG_CACHE_HOME": str(tmp_path)})
    for processes, latency in ((2, 1.0), (4, 2.0), (2, 3.0)):
        store_link(path, LinkRate("cpu", "here", processes, latency, 1e9, "2026-01-01"))
    assert [(link.processes, link.latency) for link in read_links(path)] == [(2, 3.0), (4, 2.0)]
    path.write_text("{")
    assert read_links(path) == []


def test_files_of_before_are_read(tmp_path):
    """Links with ``crowd``, and steps with the class ``stream``."""
    path = tmp_path / "links.json"
    row = {"device": "cpu", "machine": "m", "processes": 2, "latency": 1e-5, "bandwidth": 1e9, "day": "2026-01-01"}
    path.write_text(json.dumps([{**row, "crowd": 1.5}]))
    assert [link.contention for link in read_links(path)] == [1.5]
    timed = {"device": "cpu", "machine": "m", "dtype": "float32", "day": "", "label": "", "basis": "", "seconds": 2.0}
    assert make_timed({**timed, "parts": {"stream": 1.0, "loss": 0.5}}).parts == {"elementwise": 1.0, "loss": 0.5}
