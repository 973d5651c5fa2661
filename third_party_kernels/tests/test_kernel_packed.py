"""Packed weights against numpy: both widths, groups, tails of inputs, outputs, groups and rows, stacks of experts."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ops.functions import QuantizedMatrix
from erniecore_ops.packed_weights import dequantize

#: (inputs, outputs, group)
SHAPES = [(1, 1, 0), (16, 2, 0), (37, 7, 0), (64, 33, 16), (50, 70, 24), (130, 41, 32), (3, 67, 64)]


def near(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("quant_dtype", ["int8", "int4", "nf4"])
@pytest.mark.parametrize(("inputs", "outputs", "group"), SHAPES)
def test_packed_weights(kernels, tensor, rng, quant_dtype, inputs, outputs, group, packed):
    weight, dequantized = packed(quant_dtype, inputs, outputs, group)
    np.testing.assert_allclose(dequantize.__wrapped__(weight).numpy(), dequantized, rtol=1e-6)
    np.testing.assert_allclose(kernels["dequantize"].run(weight).numpy(), dequantized, rtol=1e-6)
    for rows in (1, 2, 3, 4, 7):
        x = rng.standard_normal((rows, inputs))
        assert kernels["quantized_matmul"].supports(tensor(x), weight)
        near(kernels["quantized_matmul"].run(tensor(x), weight), x.astype(np.float32) @ dequantized.T)


@pytest.mark.parametrize("quant_dtype", ["int8", "int4", "nf4"])
@pytest.mark.parametrize("group", [0, 8])
def test_packed_experts(kernels, tensor, rng, quant_dtype, group, packed, routes_of):
    weight, dequantized = packed(quant_dtype, 21, 35, group, stack=(4,))
    x, routes = rng.standard_normal((6, 21)).astype(np.float32), routes_of((0, 0, 1), (2, 1, 1), (3, 1, 6))
    assert kernels["quantized_grouped_matmul"].supports(tensor(x), weight, routes)
    expected = np.concatenate([x[:1] @ dequantized[0].T, x[1:] @ dequantized[3].T])
    near(kernels["quantized_grouped_matmul"].run(tensor(x), weight, routes), expected)
    np.testing.assert_allclose(kernels["dequantize"].run(weight).numpy(), dequantized, rtol=1e-6)


def test_a_row_has_the_same_bits_alone_and_among_others(kernels, tensor, rng, packed):
    weight, _ = packed("int4", 100, 67, 0)
    x = tensor(rng.standard_normal((7, 100)))
    together = kernels["quantized_matmul"].run(x, weight).numpy()
    for row in range(7):
        alone = kernels["quantized_matmul"].run(x[row : row + 1], weight).numpy()
        assert np.array_equal(alone[0], together[row])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, w: (x[:, :5], w),
        lambda x, w: (x.astype("float64"), w),
        lambda x, w: (paddle.ones([0, 6]), w),
        lambda x, w: (x, QuantizedMatrix(w.qweight.astype("int32"), w.scales, "int8", 0, 4)),
        lambda x, w: (x, QuantizedMatrix(w.qweight, w.scales, "int2", 0, 4)),
        lambda x, w: (x, QuantizedMatrix(w.qweight, w.scales, "int8", 0, 5)),
        lambda x, w: (x, QuantizedMatrix(w.qweight, w.scales, "int4", 0, 4)),
        lambda x, w: (x, QuantizedMatrix(w.qweight, w.scales, "int8", 3, 4)),
        lambda x, w: (x, QuantizedMatrix(w.qweight[:, ::2], w.scales, "int8", 0, 4)),
    ],
)
def test_what_it_would_read_wrongly_is_left_to_the_reference(kernels, wrong, packed):
    weight, _ = packed("int8", 6, 4, 0)
    x = paddle.ones([2, 6])
    assert kernels["quantized_matmul"].supports(x, weight)
    assert not kernels["quantized_matmul"].supports(*wrong(x, weight))


@pytest.mark.parametrize(
    "parts", [((0, 0, 1),), ((0, 0, 2), (4, 2, 3)), ((1, 1, 3),), ((0, 0, 1), (1, 2, 3)), ((-1, 0, 3),)]
)
def test_routes_that_do_not_cover_the_rows_are_left_to_the_reference(kernels, parts, packed, routes_of):
    weight, _ = packed("int8", 6, 4, 0, stack=(4,))
    x = paddle.ones([3, 6])
    assert kernels["quantized_grouped_matmul"].supports(x, weight, routes_of((0, 0, 1), (3, 1, 3)))
    assert not kernels["quantized_grouped_matmul"].supports(x, weight, routes_of(*parts))
