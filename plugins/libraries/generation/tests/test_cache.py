"""The cache returns what concatenation would, in place, and says when it is full."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_generation.cache import StaticCache

from erniecore.errors import UsageError


def random(*shape, dtype="float32"):
    return paddle.to_tensor(np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")).astype(dtype)


def test_updates_equal_concatenation_per_layer():
    cache = StaticCache(layers=2, capacity=9)
    parts = [random(3, n, 2, 4) for n in (5, 1, 3)]
    for layer in (0, 1):
        for n, part in enumerate(parts):
            keys, values = cache.update(layer, part, part * 2)
            expected = paddle.concat(parts[: n + 1], axis=1).numpy()
            np.testing.assert_array_equal(keys.numpy(), expected)
            np.testing.assert_array_equal(values.numpy(), expected * 2)


def test_length_grows_only_when_every_layer_has_stored():
    cache = StaticCache(layers=2, capacity=4)
    cache.update(0, random(1, 3, 1, 2), random(1, 3, 1, 2))
    assert cache.length == 0
    cache.update(1, random(1, 3, 1, 2), random(1, 3, 1, 2))
    assert cache.length == 3


def test_one_buffer_per_layer_serves_all_steps():
    cache = StaticCache(layers=1, capacity=4)
    first, _ = cache.update(0, random(1, 1, 1, 2), random(1, 1, 1, 2))
    address = first.data_ptr()
    assert cache.update(0, random(1, 2, 1, 2), random(1, 2, 1, 2))[0].data_ptr() == address


def test_dtype_is_that_of_the_keys():
    keys, _ = StaticCache(1, 4).update(0, random(1, 2, 1, 2, dtype="bfloat16"), random(1, 2, 1, 2, dtype="bfloat16"))
    assert keys.dtype == paddle.bfloat16


def test_keep_selects_rows_in_order_and_later_updates_go_to_them():
    cache = StaticCache(layers=1, capacity=4)
    old, new = random(3, 2, 1, 2), random(2, 1, 1, 2)
    cache.update(0, old, old)
    cache.keep([2, 0])
    keys, _ = cache.update(0, new, new)
    np.testing.assert_array_equal(keys.numpy(), np.concatenate([old.numpy()[[2, 0]], new.numpy()], axis=1))


def test_a_full_cache_is_an_error_not_a_wrong_completion():
    cache = StaticCache(layers=1, capacity=3)
    cache.update(0, random(1, 3, 1, 2), random(1, 3, 1, 2))
    with pytest.raises(UsageError, match="at most 3"):
        cache.update(0, random(1, 1, 1, 2), random(1, 1, 1, 2))


def test_another_batch_size_is_an_error():
    cache = StaticCache(layers=1, capacity=3)
    cache.update(0, random(2, 1, 1, 2), random(2, 1, 1, 2))
    with pytest.raises(UsageError, match="another batch"):
        cache.update(0, random(1, 1, 1, 2), random(1, 1, 1, 2))


def test_a_row_is_replaced_without_moving_the_others():
    state = paddle.arange(24, dtype="float32").reshape([2, 3, 2, 2]) + 1
    cache, other = StaticCache(1, 6), StaticCache(1, 4)
    cache.update(0, state, -state)
    other.update(0, state[:1, :2] + 100, state[:1, :2] + 200)
    cache.put(1, other, 4)
    keys, values = cache.update(0, state[:, :1], state[:, :1])
    assert cache.length == 5
    np.testing.assert_array_equal(keys[0, :3], state[0])
    np.testing.assert_array_equal(values[1, 2:4], state[0, :2] + 200)
    assert (keys[1, :2].numpy() == 0).all()
    with pytest.raises(UsageError, match="the cache is full"):
        cache.put(0, other, 7)


def test_columns_that_were_read_begin_another_cache():
    state = paddle.arange(24, dtype="float32").reshape([1, 3, 2, 4])
    cache, other = StaticCache(1, 6), StaticCache(1, 6)
    cache.update(0, state, -state)
    other.fill([cache.read(0, np.array(columns)) for columns in ([0, 1], [2])])
    keys, values = other.update(0, state[:, :1], state[:, :1])
    np.testing.assert_array_equal(keys[:, :3], state)
    np.testing.assert_array_equal(values[:, :3], -state)


def test_columns_are_read_in_parts_that_share_no_memory():
    state = paddle.arange(48, dtype="float32").reshape([1, 6, 2, 4])
    cache, other = StaticCache(1, 6), StaticCache(1, 6)
    cache.update(0, state, -state)
    parts = cache.read_parts(0, np.array([0, 1, 2, 4, 5]), [2, 1, 2])
    assert [[tensor.shape[1] for tensor in part] for part in parts] == [[2, 2], [1, 1], [2, 2]]
    np.testing.assert_array_equal(parts[2][1], -state[:, 4:])
    parts[0][0][:] = 0.0
    other.fill(parts[1:])
    keys, _ = other.update(0, state[:, :1], state[:, :1])
    np.testing.assert_array_equal(keys[:, :3], state[:, [2, 4, 5]])
    assert cache.read_parts(0, np.arange(2), [2])[0][0].shape == [1, 2, 2, 4]
