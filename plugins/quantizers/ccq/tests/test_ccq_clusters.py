"""The 2.06-bit code: the layout against one written again, the nearest byte against all, what is lost."""

import numpy as np
from erniecore_ccq import clusters
from erniecore_ccq.clusters import CODE_SCALE, CODE_ZP, GROUP, Clusters, decode, encode, vectors
from hypothesis import given
from hypothesis import strategies as st


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def by_definition(stored, inputs):
    """One weight at a time, in whole numbers and text of bits."""
    found = np.zeros((inputs, stored.quant_weight.shape[1]))
    for i, o in np.ndindex(*found.shape):
        exact = int(stored.quant_weight[i // 4, o]) * float(stored.code_scale[o]) + float(stored.code_zp[o])
        bits = f"{int(np.floor(exact + 0.5)) % (1 << 15):015b}"
        start = 3 * (i % 4)  # windows of six bits, three apart
        group = i // GROUP
        pair = f"{stored.weight_scale[group // 2, o]:08b}"
        local = int(pair[4:] if group % 2 else pair[:4], 2)
        found[i, o] = (int(bits[start : start + 6], 2) - 32) * np.float32(local * stored.super_scale[o])
    return found


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_any_bytes_decode_as_defined(groups, outputs, seed):
    rng = np.random.default_rng(seed)
    stored = Clusters(
        rng.integers(0, 256, (16 * groups, outputs), np.uint8),
        rng.integers(0, 256, ((groups + 1) // 2, outputs), np.uint8),
        rng.random(outputs).astype(np.float32),
        (rng.integers(0, 2000, outputs) / 8).astype(np.float32),
        (rng.integers(0, 4000, outputs) / 8).astype(np.float32),
    )
    inputs = GROUP * groups - int(rng.integers(0, 60))
    np.testing.assert_allclose(decode(stored, inputs), by_definition(stored, inputs), rtol=1e-6)


@given(st.integers(1, 200), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_odd_shapes(inputs, outputs, seed):
    weight = normal(inputs, outputs, seed=seed)
    stored = encode(weight)
    groups = -(-inputs // GROUP)
    assert stored.quant_weight.shape == (16 * groups, outputs)
    assert stored.weight_scale.shape == ((groups + 1) // 2, outputs)
    assert np.square(weight - decode(stored, inputs)).sum() <= 0.25 * np.square(weight).sum()


def test_no_byte_is_nearer_than_the_one_that_is_stored():
    weight = normal(128, 3)
    stored = encode(weight)
    found = decode(stored, 128)
    book = vectors(CODE_SCALE, CODE_ZP)
    local = np.repeat(np.stack([stored.weight_scale >> 4, stored.weight_scale & 15], 1).reshape(2, 3), 16, axis=0)
    for row, o in np.ndindex(32, 3):
        target = weight[4 * row : 4 * row + 4, o]
        least = np.square(target - book * local[row, o] * stored.super_scale[o]).sum(axis=1).min()
        assert np.square(target - found[4 * row : 4 * row + 4, o]).sum() <= least * 1.0001


def test_codes_are_exact_with_and_without_a_fused_multiply_add():
    for z in range(256):
        product = np.float32(z) * np.float32(CODE_SCALE)
        assert float(product) == z * CODE_SCALE
        assert float(product + np.float32(CODE_ZP) + np.float32(0.5)) == z * CODE_SCALE + CODE_ZP + 0.5 < 1 << 15


def test_what_normal_weights_lose():
    weight = normal(512, 48)
    assert np.square(weight - decode(encode(weight), 512)).mean() < 0.107


def test_bits_per_weight():
    stored = encode(normal(256, 4))
    assert 8 * (stored.quant_weight.nbytes + stored.weight_scale.nbytes) / (256 * 4) == 2.0625


def test_groups_of_zeros_stay_zeros_beside_others():
    weight = normal(192, 3)
    weight[64:128, 1] = 0
    found = decode(encode(weight), 192)
    assert not found[64:128, 1].any()
    assert np.square(weight - found).mean() < 0.12


def test_sizes_far_from_one():
    weight = normal(128, 2)
    expected = decode(encode(weight), 128)
    for size in (1e-36, 1e37):
        found = decode(encode(weight * np.float32(size)), 128) / np.float32(size)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_searching_in_parts_gives_the_same_bits(monkeypatch):
    weight = normal(130, 7)
    whole = encode(weight)
    monkeypatch.setattr(clusters, "_DISTANCES", 1)
    for one, other in zip(encode(weight), whole, strict=True):
        np.testing.assert_array_equal(one, other)
