"""Chunks give what the whole gives, in value and gradient, and never hold more logits than asked for."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_distill.chunked import Comparison, Head, WholeVocabulary, chunks, compared, top_tokens

H, J, V, N = 5, 3, 11, 9


class Watched:
    """A teaching that remembers how many logits it was shown at a time."""

    def __init__(self, inner):
        self.inner, self.seen = inner, []

    def compare(self, rows, logits, comparison):
        self.seen.append(logits.shape[0])
        return self.inner.compare(rows, logits, comparison)


def make(seed=0):
    rng = np.random.default_rng(seed)
    hidden, weight = (paddle.to_tensor(rng.normal(size=s), stop_gradient=False) for s in ((N, H), (H, V)))
    theirs = WholeVocabulary(
        paddle.to_tensor(rng.normal(size=(N, J))), Head(paddle.to_tensor(rng.normal(size=(V, J))), True, None)
    )
    return hidden, weight, paddle.to_tensor(rng.integers(0, V, N)), theirs


def step(chunk, top_k=0, **comparison):
    hidden, weight, labels, teaching = make()
    compare = Comparison(**comparison)
    if top_k:
        teaching = top_tokens(teaching.head.logits(teaching.hidden), top_k, compare.temperature)
    watched = Watched(teaching)
    nll, divergence, agreed = compared(hidden, Head(weight, False, None), labels, watched, compare, chunk)
    (0.3 * nll + 0.7 * divergence).backward()
    return (float(nll), float(divergence), float(agreed)), (hidden.grad.numpy(), weight.grad.numpy()), watched.seen


@pytest.mark.parametrize("top_k", [0, 4])
@pytest.mark.parametrize("chunk", [1, 4, 9, 100])
def test_chunks_give_the_whole(chunk, top_k):
    given = {"divergence": "jsd", "temperature": 2.0, "top_k": top_k}
    (values, gradients, seen), (whole, expected, _) = step(chunk, **given), step(0, **given)
    np.testing.assert_allclose(values, whole, rtol=1e-12)
    for one, two in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-12)
    assert max(seen) <= chunk


def test_against_the_formula():
    hidden, weight, labels, theirs = make()
    logits = (hidden @ weight).detach().numpy()
    other = theirs.head.logits(theirs.hidden).numpy()
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (other / 2, logits / 2))
    one = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    nll = -np.log(one[np.arange(N), labels.numpy()]).sum()
    agreed = (logits.argmax(-1) == other.argmax(-1)).sum()
    found, _, _ = step(4, temperature=2.0)
    assert found == pytest.approx((nll, (p * np.log(p / q)).sum(), agreed), rel=1e-12)


def test_a_chunk_is_forgotten_before_the_next():
    """Gradients need the logits once more, a chunk at a time."""
    _, _, seen = step(4)
    assert sorted(seen) == [1, 1, 4, 4, 4, 4]


def test_no_gradient_no_second_pass():
    hidden, weight, labels, theirs = make()
    watched = Watched(theirs)
    with paddle.no_grad():
        compared(hidden, Head(weight, False, None), labels, watched, Comparison(), 4)
    assert watched.seen == [4, 4, 1]


def test_slices_cover_everything():
    assert [(s.start, s.stop) for s in chunks(5, 2)] == [(0, 2), (2, 4), (4, 5)]
    assert [(s.start, s.stop) for s in chunks(5, 0)] == [(0, 5)]
    assert list(chunks(0, 0)) == []
