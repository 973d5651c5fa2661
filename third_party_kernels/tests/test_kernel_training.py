"""AdamW and the sum of squares over many tensors, and the gradient of the embedding."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels.adamw import binding
from ernie_third_party_kernels.adamw import reference as adamw
from ernie_third_party_kernels.embedding import reference as embedding
from ernie_third_party_kernels.top_experts import reference as router
from erniecore_ops import adamw as core
from erniecore_ops.embedding import embedding_backward

SHAPES = [[1], [7, 5], [33], [40000], [3, 11, 2]]


def terms(t, scale=1.0):
    return core.Terms(0.9, 0.95, 1e-8, 0.9**t, 0.95**t, scale)


def state(rng, moments="float32"):
    """Targets, gradients, first and second moments of parameters with and without tails."""
    made = [[rng.standard_normal(shape).astype(np.float32) for shape in SHAPES] for _ in range(4)]
    made[3] = [np.square(v) for v in made[3]]
    dtypes = ["float32", "float32", moments, moments]
    return [[paddle.to_tensor(x).astype(dtype) for x in xs] for xs, dtype in zip(made, dtypes, strict=True)]


RATES, DECAYS = [1e-3, 2e-3, 1e-3, 5e-4, 1e-3], [0.1, 0.0, 0.0, 0.1, 0.01]


@pytest.mark.parametrize("t", [1, 1000])
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_adamw(kernels, rng, t, scale):
    tensors = state(rng)
    before = [[x.numpy().astype(np.float64) for x in xs] for xs in tensors]
    assert kernels["adamw_"].supports(*tensors, RATES, DECAYS, terms(t, scale))
    kernels["adamw_"].run(*tensors, RATES, DECAYS, terms(t, scale))
    for k in range(len(SHAPES)):
        p, g, m, v = (xs[k] for xs in before)
        expected = adamw.adamw(p, g * scale, m, v, RATES[k], DECAYS[k], (0.9, 0.95), 1e-8, t)
        for found, wanted in zip((tensors[0][k], tensors[2][k], tensors[3][k]), expected, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
def test_adamw_is_what_paddle_computes(kernels, moments):
    ours, theirs = state(np.random.default_rng(3), moments), state(np.random.default_rng(3), moments)
    kernels["adamw_"].run(*ours, RATES, DECAYS, terms(2, 0.5))
    core.adamw_.__wrapped__(*theirs, RATES, DECAYS, terms(2, 0.5))
    for found, expected in zip(ours[0], theirs[0], strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-7, atol=1e-7)
    near = 2e-7 if moments == "float32" else 2**-7  # one last bit, where rounding is a close call
    for k in (2, 3):
        for found, expected in zip(ours[k], theirs[k], strict=True):
            a, b = found.astype("float32").numpy(), expected.astype("float32").numpy()
            np.testing.assert_allclose(a, b, rtol=near, atol=1e-7)
            assert (a != b).mean() < 1e-3 or moments == "float32"


def test_updating_a_part_gives_the_bits_of_the_whole(kernels, rng):
    """Ranks that share an optimizer update ranges of the flattened parameter."""
    whole, part = state(np.random.default_rng(4)), state(np.random.default_rng(4))
    kernels["adamw_"].run(*whole, RATES, DECAYS, terms(3))
    cut = [[x.flatten()[:17], x.flatten()[17:]] for x in (xs[3] for xs in part)]
    kernels["adamw_"].run(*cut, [RATES[3]] * 2, [DECAYS[3]] * 2, terms(3))
    for xs, (head, tail) in zip(whole, cut, strict=True):
        assert np.array_equal(xs[3].numpy(), np.concatenate([head.numpy(), tail.numpy()]))


def test_moments_of_several_kinds_are_left_to_the_reference(kernels, rng):
    tensors = state(rng)
    rest = RATES, DECAYS, terms(1)
    for place, dtype in ((0, "bfloat16"), (1, "bfloat16"), (2, "float16"), (3, "bfloat16")):
        changed = [[*xs[:-1], xs[-1].astype(dtype)] if i == place else xs for i, xs in enumerate(tensors)]
        assert not kernels["adamw_"].supports(*changed, *rest)
    shorter = [*tensors[:3], [x[:1] for x in tensors[3]]]
    assert not kernels["adamw_"].supports(*shorter, *rest)


def test_sum_of_squares(kernels, rng):
    tensors = [paddle.to_tensor(rng.standard_normal(shape).astype(np.float32)) for shape in SHAPES]
    found = kernels["square_sum"].run(tensors)
    expected = sum(float(np.square(x.numpy().astype(np.float64)).sum()) for x in tensors)
    assert float(found) == pytest.approx(expected, rel=1e-7)
    assert found.shape == core.square_sum.__wrapped__(tensors).shape == []
    assert not kernels["square_sum"].supports([])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e19])
def test_the_sum_is_not_finite_if_one_is_not(kernels, bad):
    tensors = [paddle.ones([40]), paddle.to_tensor(np.array([1.0, bad], np.float32))]
    assert not np.isfinite(float(kernels["square_sum"].run(tensors)))


@pytest.mark.parametrize(("ids_shape", "rows", "width"), [((1,), 1, 1), ((3, 50), 7, 33), ((200,), 130, 64)])
def test_embedding_gradient(kernels, tensor, rng, ids_shape, rows, width):
    ids = rng.integers(0, rows, ids_shape)
    dy = rng.standard_normal((*ids_shape, width))
    found = kernels["embedding_backward"].run(paddle.to_tensor(ids), tensor(dy), rows).numpy()
    np.testing.assert_allclose(found, embedding.backward(ids, dy, rows), rtol=1e-5, atol=1e-5)
    theirs = embedding_backward.__wrapped__(paddle.to_tensor(ids), tensor(dy), rows)
    np.testing.assert_allclose(found, theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_embedding_gradient_is_the_slope_of_the_lookup(rng, slope):
    ids, table, dy = np.array([2, 0, 2]), rng.standard_normal((4, 3)), rng.standard_normal((3, 3))
    slope(lambda table: table[ids], (table,), (embedding.backward(ids, dy, 4),), dy)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_id_outside_of_the_table_is_an_error(kernels, wrong):
    with pytest.raises(ValueError, match=str(wrong)):
        kernels["embedding_backward"].run(paddle.to_tensor([0, wrong]), paddle.ones([2, 3]), 5)


@pytest.mark.parametrize(("T", "E", "k"), [(1, 1, 1), (7, 8, 2), (33, 64, 6), (50, 128, 8), (3, 70, 64)])
def test_top_experts(kernels, tensor, rng, T, E, k):
    scores = rng.standard_normal((T, E)).astype(np.float32)
    found = kernels["top_experts"].run(tensor(scores), k).numpy()
    assert np.array_equal(found, router.top_experts(scores, k))
    assert np.array_equal(found, paddle.topk(tensor(scores), k, axis=-1)[1].numpy())


def test_of_equal_scores_the_first_expert(kernels, tensor):
    found = kernels["top_experts"].run(tensor([[1, 2, 1, 2, 2], [0, 0, 0, 0, 0]]), 3).numpy()
    assert found.tolist() == [[1, 3, 4], [0, 1, 2]]


def test_too_many_experts_are_left_to_the_reference(kernels):
    scores = paddle.ones([2, 80])
    assert kernels["top_experts"].supports(scores, 64)
    for k in (0, 65, 81):
        assert not kernels["top_experts"].supports(scores, k)


def test_pieces_and_threads_do_not_change_bits(monkeypatch):
    from ernie_third_party_kernels import tensors as shared
    from ernie_third_party_kernels.kernel_set import native

    if native.fault():
        pytest.skip("the library was not built")
    monkeypatch.setattr(shared, "FEWEST_ELEMENTS", 0)
    assert binding.team is shared.team
    x = [paddle.to_tensor(np.random.default_rng(5).standard_normal(200_001).astype(np.float32))]
    sums = {float(native.load("adamw", lambda n=n: n)["square_sum"].run(x)) for n in (1, 2, 3)}
    assert len(sums) == 1
