"""Sizes for people."""

import pytest
from erniecore_system.units import counted, field_lines, seconds_text, size_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (5 * 2**50, "5120.0 TiB")],
)
def test_sizes_read_in_binary_units(num_bytes, text):
    assert size_text(num_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.23, "230 ms"), (1.5, "1.5 s"), (180, "3.0 min"), (7560, "2.1 h")])
def test_times_read_in_the_unit_that_fits(seconds, text):
    assert seconds_text(seconds) == text


def test_fields_are_columns_and_break_between_items():
    memory = "each rank: weights 1.3 GiB | gradients 1.3 GiB | optimizer state 2.7 GiB = 5.4 GiB + activations"
    lines = field_lines([("model", "tiny"), ("memory", memory), ("", "more")], 44)
    assert lines == [
        "model   tiny",
        "memory  each rank: weights 1.3 GiB |",
        "        gradients 1.3 GiB |",
        "        optimizer state 2.7 GiB = 5.4 GiB +",
        "        activations",
        "        more",
    ]
    assert field_lines([], 80) == []


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (2, "key", "2 keys"),
        (3, "process", "3 processes"),
        (12, "loss token", "12 loss tokens"),
    ],
)
def test_nouns_agree_with_their_number(number, noun, text):
    assert counted(number, noun) == text
    assert counted(12_000, "row", ",") == "12,000 rows"
