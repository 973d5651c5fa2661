"""GPTQ and AWQ on one matrix: against rounding to nearest, against a naive solver, and where they must change nothing."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ptq import rounding
from erniecore_weight_only.codec import decode, encode
from erniecore_weight_only.schemes import Scheme
from hypothesis import given, settings
from hypothesis import strategies as st

SCHEMES = [Scheme("int4"), Scheme("int4", 8), Scheme("int4", 5), Scheme("int8")]
USUAL = {"damping": 0.01, "by_activation": True, "search_scale": True}


def problem(seed=0, inputs=24, outputs=10, rows=200, spread=1.0):
    """Weights, and the Hessian of inputs that hang together and differ in size."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((inputs, inputs)) / np.sqrt(inputs) + np.eye(inputs)
    x = rng.standard_normal((rows, inputs)) @ mix * np.exp(spread * rng.standard_normal(inputs))
    return rng.standard_normal((inputs, outputs)), x.T @ x, np.abs(x).mean(axis=0)


def lost(w, h, found, scheme):
    return rounding.error(w, found.dequantize(scheme.group), h)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_nearest_has_the_codes_and_scales_of_the_packed_layers(scheme):
    w = problem()[0].astype(np.float32)
    found, expected = rounding.nearest(w.astype(np.float64), scheme), encode(paddle.to_tensor(w), scheme, "w")
    scales = found.scales if scheme.group else found.scales[:, 0]
    np.testing.assert_array_equal(scales, expected.scales.numpy())
    np.testing.assert_allclose(found.dequantize(scheme.group).T, decode(expected, scheme, 10).numpy(), rtol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_gptq_loses_less_of_the_output_than_rounding_to_nearest(scheme, seed):
    w, h, _ = problem(seed)
    assert lost(w, h, rounding.gptq(w, h, scheme, **USUAL), scheme) < 0.8 * lost(
        w, h, rounding.nearest(w, scheme), scheme
    )


def test_gptq_is_its_definition():
    """Input after input: round, then move the others to where they lose least (solved anew each time, without Cholesky)."""
    scheme = Scheme("int4")
    w, h, _ = problem(5, inputs=12, outputs=3)
    scales = rounding.nearest(w, scheme).scales.astype(np.float64)[:, 0]
    left, qweight = w.copy(), np.empty((12, 3))
    for i in range(12):
        qweight[i] = np.clip(np.rint(left[i] / scales), -7, 7)
        delta = qweight[i] * scales - left[i]
        if i < 11:
            left[i + 1 :] -= np.linalg.solve(h[i + 1 :, i + 1 :], np.outer(h[i + 1 :, i], delta))
    plain = {"damping": 1e-12, "by_activation": False, "search_scale": False}
    np.testing.assert_array_equal(rounding.gptq(w, h, scheme, **plain).qweight.T, qweight)


def test_gptq_of_inputs_that_do_not_hang_together_rounds_to_nearest():
    w = problem()[0]
    plain = {"damping": 0.01, "by_activation": True, "search_scale": False}
    found = rounding.gptq(w, np.diag(np.arange(1.0, 25)), Scheme("int4"), **plain)
    np.testing.assert_array_equal(found.qweight, rounding.nearest(w, Scheme("int4")).qweight)


def test_gptq_in_blocks_is_gptq_in_one(monkeypatch):
    w, h, _ = problem(2)
    whole = rounding.gptq(w, h, Scheme("int4", 8), **USUAL)
    monkeypatch.setattr(rounding, "_BLOCK", 5)
    np.testing.assert_array_equal(rounding.gptq(w, h, Scheme("int4", 8), **USUAL).qweight, whole.qweight)


@pytest.mark.parametrize("dead", [(0, 7, 23), tuple(range(24))])
def test_inputs_that_are_always_zero_are_rounded_to_nearest(dead):
    w, h, _ = problem(1)
    dead = list(dead)
    h[dead, :] = h[:, dead] = 0
    plain = {"damping": 0.01, "by_activation": True, "search_scale": False}
    found = rounding.gptq(w, h, Scheme("int4"), **plain)
    np.testing.assert_array_equal(found.qweight[:, dead], rounding.nearest(w, Scheme("int4")).qweight[:, dead])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(SCHEMES), st.integers(1, 9), st.integers(1, 9))
def test_codes_stay_in_range_whatever_comes(seed, scheme, inputs, outputs):
    w, h, means = problem(seed, inputs, outputs, rows=3, spread=4)
    top = 127 if scheme.quant_dtype == "int8" else 7
    for found in (rounding.gptq(w, h, scheme, **USUAL), rounding.nearest(w * means[:, None], scheme)):
        assert np.abs(found.qweight.astype(int)).max() <= top
        assert (found.scales > 0).all()
        assert np.isfinite(found.dequantize(scheme.group)).all()


def test_searched_scale_loses_less_of_weights_with_one_outlier():
    w = np.random.default_rng(3).standard_normal((64, 4))
    w[0] *= 3
    searched = rounding.nearest(w, Scheme("int4"), np.ones(64)).dequantize(0)
    assert np.square(w - searched).sum() < np.square(w - rounding.nearest(w, Scheme("int4")).dequantize(0)).sum()


def searched(w, h, means, scheme):
    search = rounding.AwqSearch(means, scheme, 20)
    search.add(w, h)
    return search


@pytest.mark.parametrize("seed", range(3))
def test_awq_loses_less_where_few_inputs_are_large(seed):
    w, h, means = problem(seed, inputs=64, spread=2.0)
    scheme = Scheme("int4", 32)
    s = searched(w, h, means, scheme).factors.astype(np.float64)[:, None]
    found = rounding.nearest(w * s, scheme).dequantize(32) / s
    assert rounding.error(w, found, h) < 0.8 * lost(w, h, rounding.nearest(w, scheme), scheme)


def test_awq_leaves_inputs_of_one_size_alone():
    w, h, _ = problem()
    found = searched(w, h, np.ones(24), Scheme("int4"))
    np.testing.assert_array_equal(found.factors, np.ones(24, np.float32))
    assert found.noise == rounding.error(w, rounding.nearest(w, Scheme("int4")).dequantize(0), h)


def test_error_is_that_of_the_outputs():
    rng = np.random.default_rng(4)
    x, w, w2 = rng.standard_normal((50, 8)), rng.standard_normal((8, 3)), rng.standard_normal((8, 3))
    assert rounding.error(w, w2, x.T @ x) == pytest.approx(np.square(x @ w - x @ w2).sum())
