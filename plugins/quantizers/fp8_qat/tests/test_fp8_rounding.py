"""Scales, blocks and codes against numpy and ml_dtypes; what a Hadamard transform is good for."""

import ml_dtypes
import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_fp8_qat import rounding
from erniecore_fp8_qat.recipes import BlockWise, TensorWise
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.api import NumericsError

RNG = np.random.default_rng(0)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def values(recipe, weight):
    """What the codes stand for, in the transformed basis."""
    return recipe.unpack(recipe.pack(paddle.to_tensor(weight))).numpy()


def sqnr(signal, found):
    return 10 * np.log10(np.square(signal).sum() / np.square(signal - found).sum())


def reference(block, scale):
    """One block as numpy and ml_dtypes round it."""
    return np.clip(block / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


@settings(max_examples=200, deadline=None)
@given(st.floats(2.0**-120, 2.0**120, width=32))
def test_power_of_two_is_the_smallest_one_that_is_large_enough(value):
    found = rounding.power_of_two(paddle.to_tensor([value], "float32")).numpy()[0]
    assert np.frexp(found)[0] == 0.5
    assert found / 2 < np.float32(value) <= found


@pytest.mark.parametrize("power", [-130, -126, -40, 0, 5, 127])
def test_powers_of_two_are_their_own_within_the_normal_numbers(power):
    found = rounding.power_of_two(paddle.to_tensor([2.0**power], "float32")).numpy()[0]
    assert found == np.float32(2.0 ** max(power, -126))


def test_scale_of_a_tensor_reaches_448_exactly_and_never_overflows():
    weight = normal(40, 24)
    packed = TensorWise().pack(paddle.to_tensor(weight))
    dequantized = rounding.from_bits(packed.qweight).numpy()
    assert np.abs(dequantized).max() == 448
    np.testing.assert_array_equal(packed.scales.numpy(), [np.float32(np.abs(weight).max()) / np.float32(448)])
    assert values(TensorWise(), weight).tobytes() == reference(weight, packed.scales.numpy()).tobytes()


def test_experts_of_a_stack_have_scales_of_their_own():
    weight = normal(3, 16, 8) * np.array([1, 100, 0], np.float32)[:, None, None]
    packed = TensorWise(4).pack(paddle.to_tensor(weight))
    assert packed.scales.shape == [3]
    for expert in range(3):
        np.testing.assert_array_equal(values(TensorWise(4), weight)[expert], values(TensorWise(4), weight[expert]))


@pytest.mark.parametrize("shape", [(1, 1), (5, 129), (128, 256), (200, 130)])
def test_weight_blocks_are_rounded_by_themselves(shape):
    weight = normal(*shape) * np.exp(normal(*shape, seed=1))
    found, packed = values(BlockWise(), weight), BlockWise().pack(paddle.to_tensor(weight))
    assert packed.scales.shape == [-(-shape[0] // 128), -(-shape[1] // 128)]
    for i, j in np.ndindex(*packed.scales.shape):
        part = (slice(128 * i, 128 * (i + 1)), slice(128 * j, 128 * (j + 1)))
        scale = np.float32(2) ** np.ceil(np.log2(np.abs(weight[part]).max() / 448))
        assert packed.scales.numpy()[i, j] == scale
        np.testing.assert_array_equal(found[part], reference(weight[part], scale))


def test_row_blocks_are_rounded_by_themselves():
    x = normal(6, 300)
    x[2] = 0
    x[3, 128:256] *= 1e4
    found = rounding.rounded_rows(paddle.to_tensor(x)).numpy()
    for row in range(6):
        for start in range(0, 300, 128):
            part = x[row, start : start + 128]
            scale = np.float32(2) ** np.ceil(np.log2(np.abs(part).max() / 448)) if part.any() else np.float32(1)
            np.testing.assert_array_equal(found[row, start : start + 128], reference(part, scale))


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (33, 65)])
@pytest.mark.parametrize("recipe", [TensorWise(), TensorWise(1), BlockWise()], ids=str)
def test_codes_are_unpacked_to_what_was_packed(shape, recipe):
    packed = recipe.pack(paddle.to_tensor(normal(*shape)))
    assert tuple(packed.qweight.shape) == shape
    dequantized = rounding.from_bits(packed.qweight)
    np.testing.assert_array_equal(rounding.to_bits(dequantized).numpy(), packed.qweight.numpy())
    again = recipe.pack(recipe.unpack(packed))  # codes are their own nearest numbers
    np.testing.assert_array_equal(recipe.unpack(again).numpy(), recipe.unpack(packed).numpy())


@pytest.mark.parametrize("recipe", [TensorWise(), TensorWise(32), BlockWise()], ids=str)
@pytest.mark.parametrize("factor", [0.0, 1e-38, 1e36])
def test_no_input_makes_nan(recipe, factor):
    weight = normal(64, 32) * np.float32(factor)
    weight[0, 0] = np.float32(factor)
    assert np.isfinite(values(recipe, weight)).all()


@pytest.mark.parametrize(
    ("recipe", "least"), [(TensorWise(), 31.4), (TensorWise(32), 31.4), (BlockWise(), 31.4)], ids=str
)
def test_normal_weights_lose_what_the_format_loses(recipe, least):
    """Relative error 0.0264 of rounding normal values to three bits behind the point: 31.5 dB."""
    weight = paddle.to_tensor(normal(1024, 512))
    packed = recipe.pack(weight)
    transformed = recipe.transform(recipe.unpack(packed).T).T.numpy()
    assert least < sqnr(weight.numpy(), transformed) < 31.8


def test_hadamard_makes_the_maximum_of_batches_steady():
    """What makes one fixed scale fit all batches: inputs whose outliers sit in some channels of some batches."""
    spread = {}
    for block in (1, 32):
        maxima = []
        for batch in range(200):
            rng = np.random.default_rng(batch)
            x = rng.standard_normal((64, 128)).astype(np.float32)
            x[rng.integers(64), rng.integers(128)] *= np.exp(2 * rng.standard_normal())
            maxima.append(float(TensorWise(block).transform(paddle.to_tensor(x)).abs().max()) / np.sqrt(block))
        spread[block] = np.std(maxima) / np.mean(maxima)
    assert spread[32] < spread[1] / 2


def test_one_outlier_costs_a_tensor_its_small_values_and_a_block_nothing_else():
    x = normal(16, 1024) * 1e-3
    x[0, 0] = 20_000.0
    whole = TensorWise().activation(paddle.to_tensor(x), TensorWise().scale_of(paddle.to_tensor(x).abs().max())).numpy()
    blocks = rounding.rounded_rows(paddle.to_tensor(x)).numpy()
    assert (whole[1:] == 0).mean() > 0.9
    assert (blocks[1:] == 0).mean() < 1e-3


def test_weights_that_are_not_finite_are_named():
    with pytest.raises(NumericsError, match="not finite") as caught:
        rounding.check_finite(paddle.to_tensor([1.0, np.nan, np.inf]), "layers.3.up_proj")
    assert "layers.3.up_proj" in str(caught.value)
    assert "2 values" in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "width", "found"), [(32, 64, 32), (32, 24, 8), (32, 7, 1), (0, 64, 1), (128, 128, 128)]
)
def test_block_that_divides_the_width(wanted, width, found):
    assert rounding.hadamard_block(wanted, width) == found
