"""Quantization of stored matrices and random values: bit for bit what numpy makes."""

import numpy as np
import pytest
from erniecore_ops import quantizing, random_values
from erniecore_ops.bfloat16_bits import bfloat16_to_float32, float32_to_bfloat16

#: (inputs, outputs, group): tails of pieces, of groups and of pairs
SHAPES = [(1, 1, 0), (16, 2, 0), (37, 7, 0), (64, 33, 16), (1300, 5, 0), (1030, 6, 600), (130, 41, 32), (7, 4, 64)]


def outputs_first(rng, inputs, outputs, dtype):
    """A matrix [I, O] as a public file has it, with zeros, ties and outputs that are only zeros."""
    rows = (rng.standard_normal((outputs, inputs)) * np.exp(rng.standard_normal((outputs, 1)))).astype(np.float32)
    rows[rng.random(rows.shape) < 0.1] = 0
    rows[::3, : inputs // 2] = np.round(rows[::3, : inputs // 2] * 2) / 2
    rows[outputs // 2] = 0
    return (float32_to_bfloat16(rows) if dtype == "bfloat16" else rows).T


def empty(inputs, outputs, quant_dtype, group):
    rows = outputs if quant_dtype == "int8" else (outputs + 1) // 2
    return np.empty((rows, inputs), np.int8), np.empty((outputs, -(-inputs // group) if group else 1), np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("quant_dtype", ["int8", "int4", "nf4"])
@pytest.mark.parametrize(("inputs", "outputs", "group"), SHAPES)
def test_the_bits_are_those_of_numpy(kernels, rng, dtype, quant_dtype, inputs, outputs, group):
    weight = outputs_first(rng, inputs, outputs, dtype)
    given, made = (weight, dtype, quant_dtype, group), []
    for function in (kernels["quantize_matrix"].run, quantizing.quantize_matrix.__wrapped__):
        into = empty(inputs, outputs, quant_dtype, group)
        assert kernels["quantize_matrix"].supports(*given, *into)
        made.append((*into, function(*given, *into)))
    (values, scales, error), (expected, expected_scales, expected_error) = made
    assert np.array_equal(values, expected)
    assert np.array_equal(scales, expected_scales)
    np.testing.assert_allclose(error[:2], expected_error[:2], rtol=1e-12)
    assert error[2] == expected_error[2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_scale_says_that_a_weight_is_not_finite(kernels, rng, dtype, bad):
    rows = rng.standard_normal((5, 80)).astype(np.float32)
    rows[3, 70] = bad
    values, scales = empty(80, 5, "int4", 40)
    weight = (float32_to_bfloat16(rows) if dtype == "bfloat16" else rows).T
    kernels["quantize_matrix"].run(weight, dtype, "int4", 40, values, scales)
    assert np.argwhere(~np.isfinite(scales)).tolist() == [[3, 1]]


def test_the_order_of_the_axes_does_not_matter(rng):
    for dtype in ("bfloat16", "float32", "float16"):
        plain = dtype if dtype != "float16" else "float32"
        weight = outputs_first(rng, 300, 7, plain)
        weight = weight if dtype == plain else weight.astype(np.float16)
        made = []
        for order in ("F", "C"):
            into = empty(300, 7, "nf4", 64)
            error = quantizing.quantize_matrix.__wrapped__(np.array(weight, order=order), dtype, "nf4", 64, *into)
            made.append((*into, error))
        assert np.array_equal(made[0][0], made[1][0])
        assert np.array_equal(made[0][1], made[1][1])
        np.testing.assert_allclose(made[0][2], made[1][2], rtol=1e-12)
        wide = bfloat16_to_float32(weight) if dtype == "bfloat16" else weight.astype(np.float32)
        assert made[0][2].signal == pytest.approx(float((wide.astype(np.float64) ** 2).sum()))


def refused():
    weight = np.zeros((3, 8), np.float32).T
    values, scales = empty(8, 3, "int4", 0)
    yield "rows of inputs", (np.zeros((8, 3), np.float32), "float32", "int4", 0, values, scales)
    yield "float16", (weight.astype(np.float16, order="K"), "float16", "int4", 0, values, scales)
    yield "another dtype than is said", (weight, "bfloat16", "int4", 0, values, scales)
    yield "values of two bits", (weight, "float32", "int2", 0, values, scales)
    yield "too few values", (weight, "float32", "int4", 0, values[:1], scales)
    yield "too few scales", (weight, "float32", "int4", 4, values, scales)
    shifted = np.zeros(97, np.uint8)[1:].view(np.float32).reshape(3, 8).T
    yield "an odd address", (shifted, "float32", "int4", 0, values, scales)
    yield "nothing", (np.zeros((0, 3), np.float32), "float32", "int4", 0, values[:, :0], scales)


@pytest.mark.parametrize("given", [pytest.param(given, id=name) for name, given in refused()])
def test_it_refuses_what_it_cannot_read(kernels, given):
    assert not kernels["quantize_matrix"].supports(*given)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("start", [0, 5, 16, 1 << 33, (1 << 33) + 7])
@pytest.mark.parametrize("count", [1, 11, 16, 100, 70_001])
def test_random_values_are_those_of_numpy(kernels, dtype, start, count):
    key, table = (0x1234_5678_9ABC_DEF0 << 64) | 0xFEDC_BA98_7654_3210, np.arange(1 << 16).astype(dtype)
    found, expected = np.empty(count, dtype), np.empty(count, dtype)
    assert kernels["draw_values"].supports(key, table, start, found)
    kernels["draw_values"].run(key, table, start, found)
    random_values.draw_values.__wrapped__(key, table, start, expected)
    assert np.array_equal(found, expected)
    assert not kernels["draw_values"].supports(key, table[:5], start, found)
    assert not kernels["draw_values"].supports(key, table, start, found.astype(np.float64))
