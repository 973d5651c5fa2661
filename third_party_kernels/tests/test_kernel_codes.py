"""Convolutional codes: numbers to the bit against the decoders in Paddle, products against these, tails, slices and stacks."""

from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ccq.layers import CodeMatrix

#: (inputs, outputs)
SHAPES = [(64, 16), (130, 70), (37, 7), (256, 200)]


def coded(rng, form, inputs, outputs, stack=()):
    """A matrix of any codes that there can be."""
    groups = -(-inputs // 64)
    scales = paddle.to_tensor(rng.random((*stack, outputs)).astype(np.float32))
    if form == "ccq-2.5":
        codes = rng.integers(0, 1 << 16, (*stack, 10 * groups, outputs)).astype(np.uint16).view(np.int16)
        return CodeMatrix(paddle.to_tensor(codes), scales, form, 64, outputs, inputs, {})
    codes = rng.integers(0, 256, (*stack, 16 * groups, outputs)).astype(np.uint8)
    local = rng.integers(0, 256, (*stack, (groups + 1) // 2, outputs)).astype(np.uint8)
    others = {
        "weight_scale": paddle.to_tensor(local),
        "code_scale": paddle.full([*stack, outputs], 120.9375),
        "code_zp": paddle.full([*stack, outputs], 604.5),
    }
    return CodeMatrix(paddle.to_tensor(codes), scales, form, 64, outputs, inputs, others)


def near(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("form", ["ccq-2.5", "ccq-2.06"])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_codes(kernels, tensor, rng, form, inputs, outputs):
    weight = coded(rng, form, inputs, outputs)
    numbers = weight.numbers().numpy()
    assert kernels["packed_numbers"].supports(weight)
    assert np.array_equal(kernels["packed_numbers"].run(weight).numpy(), numbers)
    for rows in (1, 2, 9):
        x = tensor(rng.standard_normal((rows, inputs)))
        assert kernels["packed_product"].supports(x, weight)
        near(kernels["packed_product"].run(x, weight), x.numpy().astype(np.float64) @ numbers.T)


@pytest.mark.parametrize("form", ["ccq-2.5", "ccq-2.06"])
def test_some_outputs_and_stacked_experts(kernels, tensor, rng, form):
    whole = coded(rng, form, 130, 90)
    part = whole.part(20, 70)
    assert kernels["packed_numbers"].supports(part)
    assert np.array_equal(kernels["packed_numbers"].run(part).numpy(), whole.numbers().numpy()[20:70])
    weight = coded(rng, form, 130, 33, stack=(4,))
    numbers = weight.numbers().numpy()
    assert np.array_equal(kernels["packed_numbers"].run(weight).numpy(), numbers)
    x = tensor(rng.standard_normal((6, 130)))
    routes = SimpleNamespace(
        experts=[SimpleNamespace(expert=0, rows=slice(0, 1)), SimpleNamespace(expert=3, rows=slice(1, 6))]
    )
    assert kernels["packed_grouped_product"].supports(x, weight, routes)
    expected = np.concatenate([x[:1].numpy() @ numbers[0].T, x[1:].numpy() @ numbers[3].T])
    near(kernels["packed_grouped_product"].run(x, weight, routes), expected)


def test_what_it_would_read_wrongly_is_left_to_the_reference(kernels, rng):
    weight = coded(rng, "ccq-2.06", 130, 33)
    assert kernels["packed_numbers"].supports(weight)
    short = CodeMatrix(weight.codes[:32], weight.scales, "ccq-2.06", 64, 33, 130, weight.others)
    bare = CodeMatrix(weight.codes, weight.scales, "ccq-2.06", 64, 33, 130, {})
    wide = CodeMatrix(weight.codes.astype("int32"), weight.scales, "ccq-2.06", 64, 33, 130, weight.others)
    for wrong in (short, bare, wide):
        assert not kernels["packed_numbers"].supports(wrong)
    assert not kernels["packed_product"].supports(paddle.ones([1, 129]), weight)
