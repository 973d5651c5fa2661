"""The 2.5-bit code: the layout against one written again bit by bit, the search against all 65,536 words, what is lost."""

import numpy as np
import pytest
from erniecore_ccq import words
from erniecore_ccq.words import GROUP, WORDS, decode, encode, nearest, values
from hypothesis import given
from hypothesis import strategies as st


def by_bits(word):
    """The seven values of a word from its text of bits."""
    bits = f"{word:016b}"
    starts = (0, 2, 4, 7, 9, 11, 13)  # from the highest bit
    return [int(bits[start : start + 3], 2) - 4 for start in starts]


EVERY = np.array([by_bits(word) for word in range(1 << 16)], np.float32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def squares(weight, **settings):
    found = decode(*encode(weight, **settings), len(weight))
    return np.square(weight - found)


def test_every_word_has_the_documented_values():
    stored = np.zeros((WORDS, 1 << 16), np.uint16)
    stored[4] = np.arange(1 << 16)
    np.testing.assert_array_equal(values(stored)[28:35].T, EVERY)


def test_last_word_has_one_weight_and_the_scale():
    stored = np.zeros((WORDS, 1), np.uint16)
    stored[9] = 0b111_0000000000101
    found = decode(stored, np.array([0.5], np.float32), GROUP)
    assert found[63, 0] == 3 * 5 * 0.5
    assert (found[:63] == -4 * 5 * 0.5).all()


def test_no_word_is_nearer_than_the_one_that_is_found():
    x = 2 * normal(GROUP, 6, seed=1)
    found = values(nearest(x, np.ones_like(x)))
    lost = np.square(x - found)[:63].reshape(9, 7, 6).sum(axis=1)
    targets = x[:63].reshape(9, 7, 6).transpose(0, 2, 1)
    least = [[np.square(EVERY - target).sum(axis=1).min() for target in row] for row in targets]
    np.testing.assert_allclose(lost, least, rtol=1e-5)


def test_no_word_is_nearer_where_inputs_count_differently():
    x, counts = 2 * normal(GROUP, 3, seed=2), np.abs(normal(GROUP, 3, seed=3)) * (normal(GROUP, 3, seed=4) > -0.5)
    found = values(nearest(x, counts))
    lost = (counts * np.square(x - found))[:7].sum(axis=0)
    least = [(counts[:7, n] * np.square(EVERY - x[:7, n])).sum(axis=1).min() for n in range(3)]
    np.testing.assert_allclose(lost, least, rtol=1e-5)


def test_every_word_is_found_again_from_its_values():
    stored = np.broadcast_to(np.arange(1 << 16).astype(np.uint16), (WORDS, 1 << 16)).copy()
    stored[9] &= 0xE000
    dequantized = values(stored)
    np.testing.assert_array_equal(nearest(dequantized, np.ones_like(dequantized)), stored)


@given(st.integers(1, 140), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_shapes_and_what_is_stored_for_odd_ones(inputs, outputs, seed):
    weight = normal(inputs, outputs, seed=seed)
    stored, supers = encode(weight)
    assert stored.shape == (WORDS * -(-inputs // GROUP), outputs)
    found = decode(stored, supers, inputs)
    assert found.shape == weight.shape
    assert np.square(weight - found).sum() <= 0.25 * np.square(weight).sum()


def test_what_normal_weights_lose():
    assert squares(normal(1024, 96)).mean() < 0.0955


def test_160_bits_for_64_weights():
    stored, supers = encode(normal(256, 8))
    assert 8 * stored.nbytes / (256 * 8) == 2.5
    assert supers.shape == (8,)


@pytest.mark.parametrize("size", [1e-36, 1.0, 1e37])
def test_the_size_of_weights_does_not_matter(size):
    weight = normal(128, 4)
    found = decode(*encode(weight * np.float32(size)), 128) / np.float32(size)
    np.testing.assert_allclose(found, decode(*encode(weight), 128), rtol=1e-3, atol=1e-3)


def test_groups_of_zeros_stay_zeros_beside_others():
    weight = normal(192, 3)
    weight[64:128, 1] = 0
    found = decode(*encode(weight), 192)
    assert not found[64:128, 1].any()
    assert np.square(weight - found).mean() < 0.11


def test_an_outlier_costs_its_own_group_only():
    weight = normal(256, 2)
    weight[3, 0] = 300
    lost = squares(weight)
    assert lost[64:, 0].mean() < 0.13
    assert lost[:, 1].mean() < 0.13
    assert lost[:64, 0].sum() < 300**2


def test_important_inputs_lose_less():
    importance = np.where(np.arange(512) % 4 == 0, 20, 1).astype(np.float32)
    weight = normal(512, 32)
    plain, weighted = squares(weight), squares(weight, importance=importance)
    assert weighted[::4].mean() < 0.8 * plain[::4].mean()


def test_searching_in_blocks_gives_the_same_bits(monkeypatch):
    weight = normal(130, 7)
    whole = encode(weight)
    monkeypatch.setattr(words, "_BLOCK", 5)
    for one, other in zip(encode(weight), whole, strict=True):
        np.testing.assert_array_equal(one, other)
