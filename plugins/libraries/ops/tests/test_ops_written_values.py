"""Values of a file in the memory in which they stay: any shape, any strides, each part shown to ``take`` once."""

from __future__ import annotations

import numpy as np
import pytest
from erniecore_ops.parallel import parallel_map
from erniecore_ops.written_values import write_values


def taking(sizes):
    def take(part):
        sizes.append(part.size)
        return part.astype(np.float32) + 1, bool((part != 77).all())

    return take


SOURCES = {
    "a number": lambda a: a[:1].reshape(()),
    "a row": lambda a: a[:5000],
    "every other value": lambda a: a[::2],
    "a matrix": lambda a: a.reshape(300, 700),
    "transposed": lambda a: a.reshape(300, 700).T,
    "transposed, one column": lambda a: a[:300].reshape(1, 300).T,
    "transposed, a power of two": lambda a: a[: 512 * 256].reshape(256, 512).T,
    "columns": lambda a: a.reshape(300, 700)[:, 33:501],
    "columns, transposed": lambda a: a.reshape(300, 700)[:, 33:501].T,
    "a stack": lambda a: a.reshape(3, 100, 700),
    "a stack, transposed": lambda a: a.reshape(3, 100, 700).transpose(0, 2, 1),
    "no rows": lambda a: a[:0].reshape(0, 7),
}


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_every_value_is_taken_once_and_lands_in_its_place(name, threads):
    import paddle

    source = SOURCES[name](np.arange(210_000, dtype=np.int32) + 100)
    target, sizes = np.full(source.shape, np.nan, np.float32), []

    def run(function, items):
        return parallel_map(function, items, paddle.zeros([1 << 20]))

    assert write_values(target, source, taking(sizes), run if threads else map)
    assert np.array_equal(target, source.astype(np.float32) + 1)
    assert sum(sizes) == source.size


@pytest.mark.parametrize("name", ["a matrix", "transposed", "a stack, transposed"])
@pytest.mark.parametrize("position", [0, 100_000, 209_999])
def test_one_value_that_is_not_good_is_found(name, position):
    values = np.arange(210_000, dtype=np.int32) + 100
    values[position] = 77
    source = SOURCES[name](values)
    assert not write_values(np.empty(source.shape, np.float32), source, taking([]))
