"""Rounding to FP8, exhaustively over bfloat16, and the Walsh-Hadamard transform."""

import ml_dtypes
import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels.fp8_quantize import reference as fp8
from ernie_third_party_kernels.hadamard import reference as walsh
from erniecore_ops import fp8 as core

DTYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
ONE = paddle.ones([1])


def every_bfloat16():
    return np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("quant_dtype", DTYPES)
def test_every_bfloat16_number_becomes_what_ml_dtypes_says_and_saturates_outside(kernels, quant_dtype):
    x, largest = every_bfloat16(), LARGEST[quant_dtype]
    found = kernels["fp8_quantize"].run(paddle.to_tensor(x), ONE, quant_dtype).numpy()
    number, inside = ~np.isnan(x), np.abs(x) <= largest
    expected = x[inside].astype(DTYPES[quant_dtype]).astype(np.float32)
    assert np.array_equal(found[inside].view(np.uint32), expected.view(np.uint32)), "bits, so that -0 counts"
    assert np.array_equal(found[number & ~inside], np.sign(x[number & ~inside]) * largest)
    assert np.isnan(found[~number]).all()


@pytest.mark.parametrize("quant_dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 64), (7, 129), (2, 3, 33)])
def test_scales_of_all_of_rows_and_of_columns(kernels, tensor, rng, quant_dtype, shape):
    x = tensor(rng.standard_normal(shape) * 10 ** rng.uniform(-6, 4, shape))
    for scale_shape in ([], [1], [*shape[:-1], 1], [shape[-1]]):
        scale = tensor(rng.random(scale_shape) + 0.1)
        assert kernels["fp8_quantize"].supports(x, scale, quant_dtype)
        found = kernels["fp8_quantize"].run(x, scale, quant_dtype).numpy()
        assert np.array_equal(found, core.fp8_quantize.__wrapped__(x, scale, quant_dtype).numpy())
        assert np.array_equal(found, fp8.fp8_quantize(x.numpy(), scale.numpy(), quant_dtype))


def test_other_scales_and_formats_are_left_to_the_reference(kernels):
    x = paddle.ones([4, 6])
    for scale in (paddle.ones([4, 6]), paddle.ones([2]), paddle.ones([1, 1, 6]), paddle.ones([1], "float64")):
        assert not kernels["fp8_quantize"].supports(x, scale)
    assert not kernels["fp8_quantize"].supports(x, ONE, "e3m4")


@pytest.mark.parametrize("block", [2, 4, 8, 16, 32, 64, 512])
def test_hadamard(kernels, tensor, rng, block):
    x = rng.standard_normal((3, 5, 2 * block))
    found = kernels["hadamard"].run(tensor(x), block)
    np.testing.assert_allclose(found.numpy(), walsh.hadamard(x, block), rtol=1e-5, atol=1e-5 * block)
    np.testing.assert_allclose(core.hadamard.__wrapped__(tensor(x), block), found, rtol=1e-5, atol=1e-5 * block)
    twice = kernels["hadamard"].run(found, block) / block
    np.testing.assert_allclose(twice.numpy(), x, rtol=1e-5, atol=1e-5)


def test_blocks_that_do_not_fit_are_left_to_the_reference(kernels):
    x = paddle.ones([2, 48])
    assert kernels["hadamard"].supports(x, 16)
    for block in (0, 1, 3, 12, 32):
        assert not kernels["hadamard"].supports(x, block)
