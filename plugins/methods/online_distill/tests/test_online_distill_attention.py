"""Attention distributions and their divergence against numpy in float64, and what is seen of a model."""

import copy

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_online_distill.attention import attention_divergence, attention_log_probs
from erniecore_online_distill.config import OnlineDistillConfig
from erniecore_online_distill.watching import last_layer, watched

from erniecore.api import ConfigError, ops
from erniecore.api.ops import AttentionInputs
from erniecore.api.run import open_model


def inputs(seed, h=4, g=2, B=2, S=5, d=3, ends=None, scale=0.7, grad=False):
    rng = np.random.default_rng(seed)
    q, k = (paddle.to_tensor(rng.normal(size=(B, S, heads, d)), stop_gradient=not grad) for heads in (h, g))
    return AttentionInputs(q, k, ends, None, scale)


def by_hand(given, see):
    """float64 [B, h, S, S] by loops; ``see(b, i, j)`` besides j <= i."""
    q, k = given.q.numpy(), given.k.numpy()
    (B, S, h, _), group = q.shape, q.shape[2] // k.shape[2]
    out = np.zeros((B, h, S, S))
    for b in range(B):
        for n in range(h):
            for i in range(S):
                keys = [j for j in range(i + 1) if see(b, i, j)]
                e = np.exp([given.scale * (q[b, i, n] @ k[b, j, n // group]) for j in keys])
                out[b, n, i, keys] = e / e.sum() if keys else 0
    return out


def test_distributions_by_hand():
    ends = np.array([[3, 3, 3, 5, 5], [2, 2, 5, 5, 4]])  # the last column of the second row is padding
    given = inputs(0, ends=paddle.to_tensor(ends.reshape(2, 1, 5, 1).astype("int32")))
    expected = by_hand(given, lambda b, i, j: i < ends[b, j])
    each, mean = (attention_log_probs(given, heads).exp().numpy() for heads in ("each", "average"))
    rows = np.ones((2, 5), bool)
    rows[1, 4] = False  # a padding row attends to what it likes; nobody reads it
    np.testing.assert_allclose(each.transpose(0, 2, 1, 3)[rows], expected.transpose(0, 2, 1, 3)[rows], atol=1e-14)
    np.testing.assert_allclose(mean[rows], expected.mean(1)[rows], atol=1e-14)


def test_divergence_by_hand_and_its_gradient():
    teacher, student = inputs(1), inputs(2, h=2, g=1, d=6, grad=True)
    real = np.array([[True] * 5, [True] * 3 + [False] * 2])
    p, q = (by_hand(x, lambda b, i, j: True).mean(1) for x in (teacher, student))
    safe = np.where(p > 0, p, 1)
    expected = np.where(p > 0, p * (np.log(safe) - np.log(np.where(p > 0, q, 1))), 0).sum(-1)[real].sum()

    def loss(given):
        found = attention_log_probs(teacher, "average")
        return attention_divergence(found, attention_log_probs(given, "average"), real)

    found = loss(student)
    assert float(found) == pytest.approx(expected, rel=1e-12)
    found.backward()
    step = np.zeros(student.k.shape)
    step[1, 2, 0, 1] = 1e-6
    ahead, behind = (
        float(loss(AttentionInputs(student.q, paddle.to_tensor(student.k.numpy() + s), None, None, student.scale)))
        for s in (step, -step)
    )
    assert float(student.k.grad[1, 2, 0, 1]) == pytest.approx((ahead - behind) / 2e-6, rel=1e-6)
    assert not student.q.grad.numpy()[1, 3:].any()  # rows that are padding teach nothing
    assert student.k.grad.numpy()[0].any()


def test_of_equal_models_nothing_is_apart():
    for heads in ("each", "average"):
        p = attention_log_probs(inputs(3), heads)
        assert float(attention_divergence(p, p, np.ones((2, 5), bool))) == 0


def test_extreme_scores_stay_finite():
    q = paddle.full([1, 4, 2, 3], 1e4, "float32")
    hard = AttentionInputs(q, q * paddle.arange(1, 5, dtype="float32").reshape([1, 4, 1, 1]), None, None, 1.0)
    soft = AttentionInputs(q * 0, q, None, None, 1.0)
    p, r = (attention_log_probs(x, "average") for x in (hard, soft))
    assert np.isfinite([float(attention_divergence(a, b, np.ones((1, 4), bool))) for a, b in ((p, r), (r, p))]).all()


def test_only_who_asks_sees_the_inputs():
    q = paddle.ones([1, 3, 2, 4])
    with ops.attention_inputs() as outer:
        ops.attention(q, q, q)
        with ops.attention_inputs() as inner:
            ops.attention(q * 2, q, q)
        first = outer[0]
    ops.attention(q * 3, q, q)
    assert (float(first.q.max()), float(inner[0].q.max()), len(outer), len(inner)) == (1, 2, 1, 1)


def test_a_model_without_a_list_of_layers_is_named():
    model = toy_model()
    model.architecture = {"num_hidden_layers": 99}
    with pytest.raises(ConfigError, match="no list of layers"):
        last_layer(model)


@pytest.mark.parametrize("name", ["assistant", "a/b", ""])
def test_names_of_students_are_names_of_directories(name):
    with pytest.raises(ValueError, match="no name for a student"):
        OnlineDistillConfig(students={name: "x"})


def test_hooks_are_gone_after_the_block(tmp_path):
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    (tmp_path / "tok").mkdir()
    train(["the quick brown fox jumps over the lazy dog 0123456789"] * 20, 340).save(tmp_path / "tok")
    size = (
        "hidden_size=16,intermediate_size=32,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=1,head_dim=4"
    )
    init_model("ernie45", size, tmp_path / "tok", tmp_path / "model", seed_value=1)
    model = open_model(tmp_path / "model").model
    ids = paddle.to_tensor([[1, 2, 3, 4]])
    plain = model(ids).numpy()
    with watched(model, copy.deepcopy(last_layer(model))) as seen:
        watched_logits = model(ids).numpy()
    assert (watched_logits == plain).all()
    assert seen.last.q.shape == [1, 4, 2, 4]
    assert not (seen.last.q == seen.auxiliary.q).all()
    assert not last_layer(model)._forward_post_hooks
