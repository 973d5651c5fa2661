"""The routed experts in training against numpy in float64: experts without rows, with one, with more than a block."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels.grouped_swiglu import reference
from erniecore_ops.grouped_swiglu import make_routes

NAMES = ("x", "gate", "up", "down", "weights")


def example(rng, experts, E, H, I):  # noqa: E741
    T, k = experts.shape
    shapes = ((T, H), (E, H, I), (E, H, I), (E, I, H), (T, k))
    return [rng.standard_normal(shape) / np.sqrt(shape[-2]) for shape in shapes], rng.standard_normal((T, H))


def spread(rng, T, E, k, dropped=0.0):
    """Experts [T, k], each of a token different; some assignments dropped."""
    experts = np.stack([rng.permutation(E)[:k] for _ in range(T)])
    experts[rng.random(experts.shape) < dropped] = -1
    return experts


def near(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max()))


def both(kernels, tensor, arrays, dy, experts, wanted=(True,) * 5):
    """y, then the gradients, of the kernels."""
    routes = make_routes(experts, arrays[1].shape[0])
    tensors = [tensor(a) for a in arrays]
    assert kernels["grouped_swiglu_forward"].supports(*tensors, routes)
    y, *kept = kernels["grouped_swiglu_forward"].run(*tensors, routes)
    assert kernels["grouped_swiglu_backward"].supports(*tensors, *kept, tensor(dy), routes, wanted)
    return y, kernels["grouped_swiglu_backward"].run(*tensors, *kept, tensor(dy), routes, wanted)


@pytest.mark.parametrize(
    ("T", "E", "k", "H", "I", "dropped"),
    [
        (1, 1, 1, 16, 16, 0.0),
        (1, 8, 3, 16, 48, 0.0),
        (29, 5, 2, 48, 16, 0.4),
        (33, 64, 4, 32, 80, 0.0),
        (150, 2, 1, 64, 32, 0.1),
        (210, 3, 2, 144, 16, 0.0),
        (97, 1, 1, 16, 144, 0.0),
    ],
)
def test_experts(kernels, tensor, rng, T, E, k, H, I, dropped):  # noqa: E741
    experts = spread(rng, T, E, k, dropped)
    arrays, dy = example(rng, experts, E, H, I)
    y, gradients = both(kernels, tensor, arrays, dy, experts)
    near(y, reference.forward(*arrays[:4], experts, arrays[4]))
    for found, expected in zip(gradients, reference.backward(*arrays[:4], experts, arrays[4], dy), strict=True):
        near(found, expected)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 96, 97, 193])
def test_so_many_rows_of_one_expert(kernels, tensor, rng, rows):
    """The first expert has none, the last has one."""
    experts = np.array([[1]] * rows + [[3]])
    arrays, dy = example(rng, experts, 4, 32, 16)
    y, gradients = both(kernels, tensor, arrays, dy, experts)
    near(y, reference.forward(*arrays[:4], experts, arrays[4]))
    for found, expected in zip(gradients, reference.backward(*arrays[:4], experts, arrays[4], dy), strict=True):
        near(found, expected)
    assert not gradients[1].numpy()[0].any()


def test_the_gradients_of_the_reference_are_its_slopes(rng, slope):
    experts = spread(rng, 7, 4, 2, 0.2)
    arrays, dy = example(rng, experts, 4, 6, 5)
    gradients = reference.backward(*arrays[:4], experts, arrays[4], dy)
    slope(lambda *a: reference.forward(*a[:4], experts, a[4]), arrays, gradients, dy)


@pytest.mark.parametrize("rows", [20, 300])
@pytest.mark.parametrize("place", range(5), ids=NAMES)
def test_a_gradient_alone_has_the_bits_that_it_has_among_all(kernels, tensor, rng, place, rows):
    experts = spread(rng, rows, 3, 2)
    arrays, dy = example(rng, experts, 3, 32, 48)
    _, every = both(kernels, tensor, arrays, dy, experts)
    _, one = both(kernels, tensor, arrays, dy, experts, [i == place for i in range(5)])
    assert [g is not None for g in one] == [i == place for i in range(5)]
    assert np.array_equal(one[place].numpy(), every[place].numpy())


def test_threads_do_not_change_bits(monkeypatch, tensor, rng):
    from ernie_third_party_kernels import tensors as shared
    from ernie_third_party_kernels.kernel_set import native

    if native.fault():
        pytest.skip("the library was not built")
    monkeypatch.setattr(shared, "FEWEST_ELEMENTS", 0)
    experts = spread(rng, 300, 5, 2)
    arrays, dy = example(rng, experts, 5, 48, 32)
    found = []
    for threads in (1, 2, 3):
        y, gradients = both(native.load("grouped_swiglu", lambda n=threads: n), tensor, arrays, dy, experts)
        found.append([y.numpy(), *(g.numpy() for g in gradients)])
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_what_is_left_to_the_reference(kernels, tensor, rng):
    """Widths with tails, nothing to do, other dtypes, matrices that do not fit or are large with many rows each."""
    experts = spread(rng, 6, 4, 2)
    supports = kernels["grouped_swiglu_forward"].supports
    for H, I in ((24, 16), (16, 40)):  # noqa: E741
        arrays, _ = example(rng, experts, 4, H, I)
        assert not supports(*map(tensor, arrays), make_routes(experts, 4))
    arrays, _ = example(rng, experts, 4, 16, 16)
    tensors = [tensor(a) for a in arrays]
    assert supports(*tensors, make_routes(experts, 4))
    assert not supports(*tensors, make_routes(np.full_like(experts, -1), 4))
    assert not supports(*tensors, make_routes(experts, 5))
    assert not supports(*(t.astype("float64") for t in tensors), make_routes(experts, 4))
    assert not supports(tensors[0], tensors[1][:3], *tensors[2:], make_routes(experts, 4))
    crowded = make_routes(np.zeros([2000, 2], np.int64), 4)
    assert supports(paddle.ones([2000, 16]), *tensors[1:4], paddle.ones([2000, 2]), crowded)
    large = paddle.empty([4, 2048, 1024]), paddle.empty([4, 2048, 1024]), paddle.empty([4, 1024, 2048])
    assert not supports(paddle.ones([2000, 2048]), *large, paddle.ones([2000, 2]), crowded)
    assert supports(paddle.ones([6, 2048]), *large, tensors[4], make_routes(experts, 4))
    assert not supports(paddle.ones([6, 32]), *tensors[1:], make_routes(experts, 4))
