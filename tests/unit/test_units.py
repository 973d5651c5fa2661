"""Sizes for people."""

import pytest

from erniecore.units import size_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (5 * 2**50, "5120.0 TiB")],
)
def test_sizes_read_in_binary_units(num_bytes, text):
    assert size_text(num_bytes) == text
