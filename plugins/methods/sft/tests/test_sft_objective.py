"""The objective against closed forms and a float64 reference, and its invariances."""

import math
from itertools import pairwise

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_sft.objective import SftObjective
from hypothesis import given
from hypothesis import strategies as st

from erniecore.api.method import IGNORE, Batch, Features
from erniecore.engine.training.next_token import mtp_labels

VOCAB, HIDDEN = 11, 6


class Toy(paddle.nn.Layer):
    """Embedding and head; sees one position only, so that rows are independent of their order."""

    def __init__(self, *, ahead=0, auxiliary=False, scale=1.0, zero_head=False):
        super().__init__()
        paddle.seed(3)
        self.embed = paddle.nn.Embedding(VOCAB, HIDDEN)
        self.head_weight = self.create_parameter([HIDDEN, VOCAB])
        self.embed.weight.set_value(paddle.randn([VOCAB, HIDDEN]) * scale)
        self.head_weight.set_value(paddle.zeros([HIDDEN, VOCAB]) if zero_head else paddle.randn([HIDDEN, VOCAB]))
        self.architecture = {"num_nextn_predict_layers": ahead}
        self.num_ahead, self.auxiliary = ahead, auxiliary

    def features(self, input_ids, *, position_ids=None, attention_mask=None, startend_row_indices=None, cache=None):
        hidden = self.embed(input_ids)
        extra = {"balance": (hidden * hidden).mean()} if self.auxiliary else {}
        return Features(hidden, tuple(hidden * (n + 2.0) for n in range(self.num_ahead)), extra)

    def logits(self, hidden):
        return paddle.matmul(hidden, self.head_weight)

    def head(self):
        return self.head_weight, False, None


def batch(rows, seed=0, width=7, ignored=0.4):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCAB, (rows, width))
    labels = np.where(rng.random((rows, width)) < ignored, IGNORE, rng.integers(0, VOCAB, (rows, width)))
    labels[:, 0] = 1
    return pack(ids, labels)


def pack(ids, labels, ends=None):
    ids, labels = np.asarray(ids, np.int64), np.asarray(labels, np.int64)
    rows, width = ids.shape
    ends = np.full((rows, width), width) if ends is None else np.asarray(ends)
    positions = np.tile(np.arange(width), (rows, 1))
    return Batch(ids, labels, positions, ends.astype(np.int32)[:, None, :, None], {}, ids.size, rows, ())


def rows_of(full, index):
    index = list(index)
    return pack(full.input_ids[index], full.labels[index], full.startend_row_indices[index, 0, :, 0])


def run(model, batches, **options):
    objective = SftObjective(model, **options)
    totals = {}
    for part in batches:
        for name, value in objective.normalizers(part).items():
            totals[name] = totals.get(name, 0) + value
    model.clear_gradients()
    outputs = [objective(part, totals) for part in batches]
    for output in outputs:
        output.loss.backward()
    sums = {}
    for output in outputs:
        for name, (value, weight) in output.metrics.items():
            old = sums.get(name, (0.0, 0.0))
            sums[name] = old[0] + float(value), old[1] + weight
    gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    return sum(float(o.loss) for o in outputs), {n: v / w for n, (v, w) in sums.items()}, gradients


def reference(model, made):
    """Mean NLL in float64, its gradient with respect to the head."""
    hidden = model.embed.weight.numpy().astype("float64")[made.input_ids]
    logits = hidden @ model.head_weight.numpy().astype("float64")
    probability = np.exp(logits - logits.max(-1, keepdims=True))
    probability /= probability.sum(-1, keepdims=True)
    mask = made.labels != IGNORE
    nll = -np.log(np.take_along_axis(probability, np.where(mask, made.labels, 0)[..., None], -1))[..., 0]
    error = (probability - np.eye(VOCAB)[np.where(mask, made.labels, 0)]) * mask[..., None] / mask.sum()
    return (nll * mask).sum() / mask.sum(), np.einsum("bsh,bsv->hv", hidden, error)


def test_uniform_prediction_costs_the_log_of_the_vocabulary():
    loss, metrics, _ = run(Toy(zero_head=True), [batch(3)])
    assert loss == pytest.approx(math.log(VOCAB), rel=1e-6)
    assert metrics["loss"] == pytest.approx(math.log(VOCAB), rel=1e-6)


def test_loss_and_gradient_equal_the_float64_reference():
    model, made = Toy(), batch(4)
    loss, _, gradients = run(model, [made])
    expected, head = reference(model, made)
    assert loss == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(gradients["head_weight"], head, atol=1e-6)


def test_gradient_equals_finite_differences():
    model, made = Toy(), batch(2)
    _, _, gradients = run(model, [made])
    weights = model.head_weight.numpy().copy()
    for at in ((0, 0), (3, 5), (5, 10)):
        values = []
        for sign in (1, -1):
            moved = weights.astype("float64")
            moved[at] += sign * 1e-3
            model.head_weight.set_value(paddle.to_tensor(moved.astype("float32")))
            values.append(reference(model, made)[0])
        assert gradients["head_weight"][at] == pytest.approx((values[0] - values[1]) / 2e-3, abs=2e-4)


@given(st.integers(0, 2**31), st.sampled_from([[4], [1, 3], [2, 2], [1, 1, 1, 1]]))
def test_split_into_micro_batches_changes_nothing(seed, sizes):
    full = batch(4, seed)
    starts = np.cumsum([0, *sizes])
    parts = [rows_of(full, range(a, b)) for a, b in pairwise(starts)]
    model = Toy(ahead=1)
    loss, metrics, gradients = run(model, [full])
    split_loss, split_metrics, split_gradients = run(model, parts)
    assert split_loss == pytest.approx(loss, rel=1e-6)
    assert split_metrics == pytest.approx(metrics, rel=1e-6)
    for name, value in gradients.items():
        np.testing.assert_allclose(split_gradients[name], value, atol=1e-6)


def test_order_of_rows_changes_nothing():
    full = batch(5)
    loss, _, gradients = run(Toy(), [full])
    other, _, turned = run(Toy(), [rows_of(full, [4, 2, 0, 1, 3])])
    assert other == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(turned["head_weight"], gradients["head_weight"], atol=1e-6)


def test_positions_that_are_not_learned_get_no_gradient():
    made = pack([[1, 2, 3, 4]], [[5, IGNORE, IGNORE, 6]])
    _, _, gradients = run(Toy(), [made])
    moved = np.abs(gradients["embed.weight"]).sum(-1) > 0
    assert moved.nonzero()[0].tolist() == [1, 4]


def test_chunks_of_any_size_agree():
    made, losses = batch(4), []
    for chunk in (0, 1, 5, 1024):
        objective = SftObjective(Toy())
        objective.loss_chunk = chunk
        losses.append(float(objective(made, objective.normalizers(made)).loss))
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)


def test_extreme_logits_stay_finite():
    loss, _, gradients = run(Toy(scale=1e4), [batch(3)])
    assert math.isfinite(loss)
    assert all(np.isfinite(g).all() for g in gradients.values())


def test_nothing_learned_gives_zero_loss_and_gradient():
    model, made = Toy(), pack([[1, 2]], [[IGNORE, IGNORE]])
    objective = SftObjective(model)
    output = objective(made, objective.normalizers(made))
    output.loss.backward()
    assert float(output.loss) == 0.0
    assert output.metrics["loss"][1] == 0.0
    assert all(p.grad is None or not p.grad.numpy().any() for p in model.parameters())


def test_prediction_ahead_adds_gradient_but_no_value():
    made = batch(3, ignored=0.0)
    plain_loss, _, plain = run(Toy(), [made])
    loss, metrics, gradients = run(Toy(ahead=2), [made], mtp_weight=0.3)
    assert loss == pytest.approx(plain_loss, rel=1e-6)
    assert metrics["mtp/loss"] > 0
    model = Toy()
    extra = 0
    for depth in range(2):
        scaled = Toy()
        scaled.embed.weight.set_value(model.embed.weight * (depth + 2.0))
        shifted = pack(made.input_ids, mtp_labels(made, depth))
        extra = extra + 0.15 * reference(scaled, shifted)[1]
    np.testing.assert_allclose(gradients["head_weight"], plain["head_weight"] + extra, atol=2e-6)


def test_auxiliary_losses_add_gradient_but_no_value():
    made = batch(3)
    plain_loss, _, plain = run(Toy(), [made])
    loss, metrics, gradients = run(Toy(auxiliary=True), [made])
    assert loss == pytest.approx(plain_loss, rel=1e-6)
    assert metrics["router/balance"] > 0
    np.testing.assert_allclose(gradients["head_weight"], plain["head_weight"], atol=1e-7)
    assert np.abs(gradients["embed.weight"] - plain["embed.weight"]).max() > 1e-4


def test_targets_ahead_stop_at_the_end_of_their_sample():
    made = pack([[1, 2, 3, 4, 5, 6]], [[11, 12, 13, 21, 22, IGNORE]], [[3, 3, 3, 5, 5, 5]])
    assert mtp_labels(made, 0).tolist() == [[12, 13, IGNORE, 22, IGNORE, IGNORE]]
    assert mtp_labels(made, 1).tolist() == [[13, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE]]


def test_accuracy_counts_the_most_likely_token():
    model = Toy()
    made = batch(4)
    best = model.logits(model.embed(paddle.to_tensor(made.input_ids))).numpy().argmax(-1)
    right = pack(made.input_ids, np.where(made.labels == IGNORE, IGNORE, best))
    half = right.labels.copy()
    half[2:] = np.where(half[2:] == IGNORE, IGNORE, (half[2:] + 1) % VOCAB)
    assert run(model, [right], accuracy=True)[1]["accuracy"] == 1.0
    mixed = pack(made.input_ids, half)
    expected = (half[:2] != IGNORE).sum() / (half != IGNORE).sum()
    assert run(model, [mixed], accuracy=True)[1]["accuracy"] == pytest.approx(expected)


def test_objective_is_pure():
    model, made = Toy(), batch(3)
    assert run(model, [made])[0] == run(model, [made])[0]
