"""Products of float32 matrices by bfloat16 parts: against float64, with bounds that follow from what is rounded."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels.kernel_set import native
from ernie_third_party_kernels.matmul import reference

#: (rows, depth, columns); the last three are large enough for non-temporal stores, the last one without rows of whole cache lines
SHAPES = [(32, 32, 32), (33, 65, 47), (100, 530, 300), (40, 2100, 33), (2100, 40, 64), (257, 256, 1000)]
SHAPES += [(2070, 40, 1040), (2070, 1100, 1040), (2070, 33, 1047)]
#: parts -> bound of the error over sum |x| |y|: half a unit in the last place of each factor's parts (2^-8 for one, 2^-16 for
#: two), of two parts also the product of the smaller ones, which is left out (2^-8 each); and what float32 sums add
BOUNDS = {1: 2 * 2.0**-8 + 2.0**-16 + 1e-6, 2: 3 * 2.0**-16 + 1e-6}


@pytest.fixture
def call(kernels):
    found = kernels["parts_matmul"]
    square = paddle.ones([32, 32])
    if not found.supports(square, square, False, False, 2, None):
        pytest.skip("this library or processor has no matrix tiles of bfloat16")
    return found


def matrices(rng, M, K, N, transpose_x=False, transpose_y=False):
    """Both factors as they lie in memory, and as they are multiplied."""
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N)))
    given = [np.ascontiguousarray(a.T if turned else a) for a, turned in ((x, transpose_x), (y, transpose_y))]
    return *map(paddle.to_tensor, given), x, y


def near(found, x, y, bound, start=0.0):
    expected, size = x.astype(np.float64) @ y + start, np.abs(x).astype(np.float64) @ np.abs(y) + np.abs(start)
    assert (np.abs(found - expected) <= bound * size).all()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(("M", "K", "N"), SHAPES)
def test_products(call, rng, M, K, N, turned, parts):
    left, right, x, y = matrices(rng, M, K, N, *turned)
    assert call.supports(left, right, *turned, parts, None)
    found = call.run(left, right, *turned, parts, None).numpy()
    near(found, x, y, BOUNDS[parts])
    size = np.abs(x).astype(np.float64) @ np.abs(y)
    assert (np.abs(found - reference.matmul(x, y, parts)) <= 2e-6 * size).all(), "more is rounded than is said"


@pytest.mark.parametrize("parts", [1, 2])
def test_it_is_rounded_no_less_than_is_said(call, rng, parts):
    """Else ``medium`` could be ``high``, and the tests above would not see it."""
    left, right, x, y = matrices(rng, 64, 64, 64)
    found = call.run(left, right, False, False, parts, None).numpy()
    errors = np.abs(found - x.astype(np.float64) @ y) / (np.abs(x).astype(np.float64) @ np.abs(y))
    assert errors.max() > {1: 2.0**-11, 2: 2.0**-20}[parts]


@pytest.mark.parametrize("parts", [1, 2])
def test_sums_are_added_to(call, rng, parts):
    left, right, x, y = matrices(rng, 70, 1100, 90, transpose_x=True)
    start = rng.standard_normal((70, 90)).astype(np.float32)
    total = paddle.to_tensor(start)
    assert call.run(left, right, True, False, parts, total) is total
    near(total.numpy(), x, y, BOUNDS[parts], start)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
@pytest.mark.parametrize("parts", [1, 2])
def test_numbers_that_are_not_finite_stay_in_their_row_and_column(call, rng, parts, value):
    left, right, x, y = matrices(rng, 50, 60, 40)
    clean = call.run(left, right, False, False, parts, None).numpy()
    for place, others in (((7, 11), np.delete(np.arange(50), 7)), ((49, 59), np.arange(49))):
        spoiled = x.copy()
        spoiled[place] = value
        found = call.run(paddle.to_tensor(spoiled), right, False, False, parts, None).numpy()
        assert not np.isfinite(found[place[0]]).any()
        assert np.array_equal(found[others], clean[others])
    spoiled = y.copy()
    spoiled[5, 39] = value
    found = call.run(left, paddle.to_tensor(spoiled), False, False, parts, None).numpy()
    assert not np.isfinite(found[:, 39]).any()
    assert np.array_equal(found[:, :39], clean[:, :39])


def test_large_and_small_numbers_keep_their_precision(call, rng):
    for scale in (1e-30, 1e-15, 1e15, 1e30):
        left, right, x, y = matrices(rng, 40, 50, 40)
        found = call.run(left * scale, right, False, False, 2, None).numpy()
        near(found / np.float32(scale), x, y, BOUNDS[2] + 1e-6)


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)])
def test_the_same_bits_on_any_number_of_threads_and_of_rows(rng, turned, monkeypatch):
    from ernie_third_party_kernels import tensors

    monkeypatch.setattr(tensors, "FEWEST_ELEMENTS", 0)
    left, right, *_ = matrices(rng, 2200, 70, 330, *turned)
    each = [native.load("matmul", lambda n=n: n)["parts_matmul"] for n in (1, 2, 3, 16)]
    if not each[0].supports(left, right, *turned, 2, None):
        pytest.skip("this processor has no matrix tiles of bfloat16")
    first, *others = (kernel.run(left, right, *turned, 2, None).numpy() for kernel in each)
    assert all(np.array_equal(first, other) for other in others)
    fewer = (left[:, 900:1000] if turned[0] else left[900:1000]).contiguous()
    assert np.array_equal(each[0].run(fewer, right, *turned, 2, None).numpy(), first[900:1000])


def test_refused(call):
    x, y = paddle.ones([40, 50]), paddle.ones([50, 60])
    assert call.supports(x, y, False, False, 2, None)
    assert call.supports(x, y, False, False, 1, paddle.ones([40, 60]))
    for given in (
        (x, y, False, True, 2, None),
        (x, y, False, False, 3, None),
        (x.astype("float64"), y, False, False, 2, None),
        (x, paddle.ones([50, 120])[:, ::2], False, False, 2, None),
        (x, y, False, False, 2, paddle.ones([60, 40])),
        (paddle.ones([31, 50]), y, False, False, 2, None),
        (paddle.ones([2, 40, 50]), y, False, False, 2, None),
    ):
        assert not call.supports(*given)


def test_parts_add_up(rng):
    x = rng.standard_normal(1000).astype(np.float32)
    assert np.array_equal(sum(reference.split(x, 3)), x)
    for part in reference.split(x, 3):
        assert not (part.view(np.uint32) & 0xFFFF).any()
    assert (np.abs(sum(reference.split(x, 2)) - x) <= 2.0**-16 * np.abs(x)).all()
