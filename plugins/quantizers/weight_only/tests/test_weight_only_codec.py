"""Codes and scales against definitions written again in numpy; what is lost, in decibels; bad weights."""

from statistics import NormalDist

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_weight_only import codec
from erniecore_weight_only.codec import NF4, decode, encode, pack, unpack
from erniecore_weight_only.schemes import Scheme
from hypothesis import given
from hypothesis import strategies as st

from erniecore.api import NumericsError

TOP = {"int8": 127, "int4": 7, "nf4": 1}
QUANT_DTYPES = list(TOP)


def dequantize(weight, scheme):
    """What the codes stand for, [.., I, O]."""
    packed = encode(paddle.to_tensor(weight), scheme, "w")
    return np.swapaxes(decode(packed, scheme, weight.shape[-1]).numpy(), -1, -2)


def by_definition(weight, quant_dtype, group):
    """One group of one output at a time, in numpy."""
    found = np.empty_like(weight)
    group = group or weight.shape[-2]
    for stack in np.ndindex(weight.shape[:-2]):
        for out in range(weight.shape[-1]):
            for start in range(0, weight.shape[-2], group):
                place = (*stack, slice(start, start + group), out)
                values = weight[place]
                scale = np.float32(np.abs(values).max()) / np.float32(TOP[quant_dtype]) or np.float32(1)
                if quant_dtype == "nf4":
                    distance = np.abs((values / scale)[:, None] - np.array(NF4, np.float32))
                    found[place] = np.array(NF4, np.float32)[distance.argmin(axis=1)] * scale
                else:
                    found[place] = np.rint(values / scale) * scale
    return found


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
@pytest.mark.parametrize("group", [0, 5, 64])
@pytest.mark.parametrize("shape", [(7, 5), (64, 6), (3, 13, 7), (2, 1, 1)])
def test_numbers_are_those_of_the_definition(quant_dtype, group, shape):
    weight = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(
        dequantize(weight, Scheme(quant_dtype, group)), by_definition(weight, quant_dtype, group)
    )


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
@pytest.mark.parametrize("shape", [(9, 7), (5, 6, 3)])
def test_packing_in_parts_gives_the_same_bits(quant_dtype, shape, monkeypatch):
    weight = paddle.randn(shape)
    whole = encode(weight, Scheme(quant_dtype, 4), "w")
    monkeypatch.setattr("erniecore_ops.quantizing.BLOCK", 40)
    for one, other in zip(encode(weight, Scheme(quant_dtype, 4), "w"), whole, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
@pytest.mark.parametrize("group", [0, 4, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_host_and_other_devices_give_the_same_values(quant_dtype, group, dtype, monkeypatch):
    values = np.random.default_rng(5).standard_normal((3, 70, 9)) * 10.0 ** np.linspace(-6, 4, 9)
    weight = paddle.to_tensor(values, "float32").astype(dtype)
    weight[0, 0], weight[:, :, 3] = 0, 0
    host = encode(weight, Scheme(quant_dtype, group), "w")
    monkeypatch.setattr(codec, "PART", 1300)
    device = codec._encode_in_parts(weight, Scheme(quant_dtype, group), "w")
    assert host.qweight.numpy().tobytes() == device.qweight.numpy().tobytes()
    assert host.scales.shape == device.scales.shape
    assert host.scales.numpy().tobytes() == device.scales.numpy().tobytes()


def test_a_quotient_next_to_a_half_is_rounded_as_the_definition_says():
    """-1.7197299 / 0.023083622 is -74.50001: a division that is off by one place says -74.5, and half to even -74."""
    weight = np.zeros([64, 16], np.float32)
    weight[0], weight[1] = np.float32(0.023083622) * 127, -1.7197299
    scale = weight[0, 0] / np.float32(127)
    stored = encode(paddle.to_tensor(weight), Scheme("int8", 64), "w").qweight.numpy()
    assert (stored[:, 1] == np.rint(weight[1, 0] / scale)).all()


@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_packing_keeps_every_code(outputs, inputs, experts, seed):
    shape = (experts, outputs, inputs) if experts else (outputs, inputs)
    qweight = np.random.default_rng(seed).integers(-8, 8, shape).astype(np.int8)
    stored = pack(paddle.to_tensor(qweight))
    assert stored.shape[-2] == (outputs + 1) // 2
    np.testing.assert_array_equal(unpack(stored, outputs).numpy(), qweight)


def test_two_outputs_share_a_byte_low_bits_first():
    stored = pack(paddle.to_tensor(np.array([[1], [-2], [7]], np.int8))).numpy().view(np.uint8)
    assert stored.tolist() == [[0xE1], [0x07]]


@pytest.mark.parametrize(
    ("scheme", "least"),
    [
        (Scheme("int8"), 40.0),
        (Scheme("int8", 128), 43.0),
        (Scheme("int4"), 15.0),
        (Scheme("int4", 128), 18.0),
        (Scheme("nf4"), 18.5),
        (Scheme("nf4", 64), 20.5),
    ],
)
def test_signal_to_noise_of_normal_weights(scheme, least):
    weight = np.random.default_rng(0).standard_normal((4096, 64)).astype(np.float32)
    noise = weight - dequantize(weight, scheme)
    assert 10 * np.log10(np.square(weight).sum() / np.square(noise).sum()) >= least


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
def test_stored_bytes_are_the_declared_ones(quant_dtype):
    for shape, group in [((33, 7), 0), ((3, 64, 10), 16), ((2, 5, 5), 3)]:
        scheme = Scheme(quant_dtype, group)
        packed = encode(paddle.randn(shape), scheme, "w")
        assert sum(t.numel().item() * t.element_size() for t in packed) == scheme.num_bytes(shape)


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
def test_zeros_stay_zeros(quant_dtype):
    assert not dequantize(np.zeros((6, 3), np.float32), Scheme(quant_dtype)).any()


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
@pytest.mark.parametrize("size", [1e38, 1e4, 1e-38, 1e-45])
def test_one_outlier_of_any_size_is_kept_and_everything_is_finite(quant_dtype, size):
    weight = np.full((9, 2), size * 1e-3, np.float32)
    weight[4, 1] = size
    found = dequantize(weight, Scheme(quant_dtype))
    assert np.isfinite(found).all()
    assert found[4, 1] == pytest.approx(size, rel=1e-6) or size < 1e-37  # no codes below the smallest normal number


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
def test_quantizing_the_numbers_again_changes_nothing(quant_dtype):
    once = dequantize(np.random.default_rng(3).standard_normal((40, 12)).astype(np.float32), Scheme(quant_dtype, 8))
    np.testing.assert_allclose(dequantize(once, Scheme(quant_dtype, 8)), once, rtol=2e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(bad):
    weight = np.ones((4, 3), np.float32)
    weight[2, 1] = bad
    with pytest.raises(NumericsError, match="not finite") as caught:
        encode(paddle.to_tensor(weight), Scheme("int8"), "model.layers.0.mlp.up_proj")
    assert caught.value.where == "model.layers.0.mlp.up_proj"


def test_nf4_levels_are_means_of_normal_quantiles():
    normal = NormalDist().inv_cdf
    positive = [normal(p) for p in np.linspace(0.9677083, 0.5, 9)[:-1]]
    negative = [-normal(p) for p in np.linspace(0.9677083, 0.5, 8)[:-1]]
    levels = np.sort([*positive, 0.0, *negative]) / max(positive)
    np.testing.assert_allclose(NF4, levels, atol=2e-7)
