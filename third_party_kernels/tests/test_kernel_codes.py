"""Convolutional codes: numbers to the bit against the decoders in Paddle, products against these, tails, slices and stacks."""

from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ccq.layers import CodeMatrix

#: (inputs, outputs)
SHAPES = [(64, 16), (130, 70), (37, 7), (256, 200)]


def coded(rng, quant_dtype, inputs, outputs, stack=()):
    """A matrix of any codes that there can be."""
    groups = -(-inputs // 64)
    scales = paddle.to_tensor(rng.random((*stack, outputs)).astype(np.float32))
    if quant_dtype == "ccq-2.5":
        qweight = rng.integers(0, 1 << 16, (*stack, 10 * groups, outputs)).astype(np.uint16).view(np.int16)
        return CodeMatrix(paddle.to_tensor(qweight), scales, quant_dtype, 64, outputs, inputs, {})
    qweight = rng.integers(0, 256, (*stack, 16 * groups, outputs)).astype(np.uint8)
    local = rng.integers(0, 256, (*stack, (groups + 1) // 2, outputs)).astype(np.uint8)
    others = {
        "weight_scale": paddle.to_tensor(local),
        "code_scale": paddle.full([*stack, outputs], 120.9375),
        "code_zp": paddle.full([*stack, outputs], 604.5),
    }
    return CodeMatrix(paddle.to_tensor(qweight), scales, quant_dtype, 64, outputs, inputs, others)


def near(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("quant_dtype", ["ccq-2.5", "ccq-2.06"])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_codes(kernels, tensor, rng, quant_dtype, inputs, outputs):
    weight = coded(rng, quant_dtype, inputs, outputs)
    dequantized = weight.dequantize().numpy()
    assert kernels["dequantize"].supports(weight)
    assert np.array_equal(kernels["dequantize"].run(weight).numpy(), dequantized)
    for rows in (1, 2, 9):
        x = tensor(rng.standard_normal((rows, inputs)))
        assert kernels["quantized_matmul"].supports(x, weight)
        near(kernels["quantized_matmul"].run(x, weight), x.numpy().astype(np.float64) @ dequantized.T)


@pytest.mark.parametrize("quant_dtype", ["ccq-2.5", "ccq-2.06"])
def test_some_outputs_and_stacked_experts(kernels, tensor, rng, quant_dtype):
    whole = coded(rng, quant_dtype, 130, 90)
    part = whole.part(20, 70)
    assert kernels["dequantize"].supports(part)
    assert np.array_equal(kernels["dequantize"].run(part).numpy(), whole.dequantize().numpy()[20:70])
    weight = coded(rng, quant_dtype, 130, 33, stack=(4,))
    dequantized = weight.dequantize().numpy()
    assert np.array_equal(kernels["dequantize"].run(weight).numpy(), dequantized)
    x = tensor(rng.standard_normal((6, 130)))
    routes = SimpleNamespace(
        experts=[SimpleNamespace(expert=0, rows=slice(0, 1)), SimpleNamespace(expert=3, rows=slice(1, 6))]
    )
    assert kernels["quantized_grouped_matmul"].supports(x, weight, routes)
    expected = np.concatenate([x[:1].numpy() @ dequantized[0].T, x[1:].numpy() @ dequantized[3].T])
    near(kernels["quantized_grouped_matmul"].run(x, weight, routes), expected)


def test_what_it_would_read_wrongly_is_left_to_the_reference(kernels, rng):
    weight = coded(rng, "ccq-2.06", 130, 33)
    assert kernels["dequantize"].supports(weight)
    short = CodeMatrix(weight.qweight[:32], weight.scales, "ccq-2.06", 64, 33, 130, weight.others)
    bare = CodeMatrix(weight.qweight, weight.scales, "ccq-2.06", 64, 33, 130, {})
    wide = CodeMatrix(weight.qweight.astype("int32"), weight.scales, "ccq-2.06", 64, 33, 130, weight.others)
    for wrong in (short, bare, wide):
        assert not kernels["dequantize"].supports(wrong)
    assert not kernels["quantized_matmul"].supports(paddle.ones([1, 129]), weight)
