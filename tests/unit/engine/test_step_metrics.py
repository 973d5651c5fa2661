"""Adding up a step: normalizers over all micro-batches, metrics read at once."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore.engine import metrics
from erniecore.engine.scoring.evaluate import evaluate
from erniecore.engine.step import forward_backward, total_normalizers
from erniecore.types.run import LossOutput, Objective
from erniecore.types.samples import IGNORE, Batch


class Mean(Objective):
    """Loss: mean over loss tokens of w · id."""

    def __init__(self):
        self.weight = paddle.to_tensor([2.0])
        self.weight.stop_gradient = False

    def normalizers(self, batch):
        return {"tokens": float((batch.labels != IGNORE).sum())}

    def __call__(self, batch, totals):
        learned = paddle.to_tensor((batch.labels != IGNORE).astype("float32"))
        total = (paddle.to_tensor(batch.input_ids).astype("float32") * learned * self.weight).sum()
        return LossOutput(
            total / totals["tokens"], {"loss": (total.detach(), float(learned.sum())), "rows": (1.0, 1.0)}
        )


def batches(rows):
    made = []
    for ids, learned in rows:
        ids = np.array([ids], np.int64)
        labels = np.where(np.array([learned], bool), ids, IGNORE)
        made.append(Batch(ids, labels, ids * 0, np.zeros((1, 1, ids.size, 1), np.int32), {}, ids.size, 1))
    return made


ROWS = [([1, 2, 3], [1, 1, 1]), ([10, 20, 30], [0, 0, 1])]


def test_every_token_weighs_the_same_whichever_micro_batch_it_is_in():
    objective = Mean()
    output = forward_backward(objective, batches(ROWS))
    means, _ = metrics.read(output.metrics)
    assert means["loss"] == pytest.approx(2 * (1 + 2 + 3 + 30) / 4)
    assert objective.weight.grad.item() == pytest.approx((1 + 2 + 3 + 30) / 4)
    assert output.num_tokens == 6


def test_totals_are_sums():
    assert total_normalizers(Mean(), batches(ROWS)) == {"tokens": 4.0}


def test_metric_of_some_parts_counts_where_it_occurs():
    merged = metrics.add([{"a": (1.0, 2.0)}, {"a": (3.0, 2.0), "b": (5.0, 1.0)}])
    assert metrics.read(merged)[0] == {"a": 1.0, "b": 5.0}


def test_mean_without_weight_is_left_out():
    assert metrics.read({"a": (0.0, 0.0), "b": (paddle.zeros([]), 0.0)})[0] == {}


def test_extra_values_come_back_in_order():
    means, extra = metrics.read({"a": (paddle.to_tensor(6.0), 2.0)}, paddle.to_tensor(1.5), paddle.to_tensor([2.5]))
    assert means == {"a": 3.0}
    assert extra == [1.5, 2.5]


def test_values_that_are_not_finite_come_through():
    means, extra = metrics.read({"a": (paddle.to_tensor(float("nan")), 1.0)}, paddle.to_tensor(float("inf")))
    assert np.isnan(means["a"])
    assert extra == [float("inf")]


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.5, 9)), min_size=1, max_size=6))
def test_mean_is_sum_over_weight(parts):
    merged = metrics.add([{"x": (paddle.to_tensor(v, dtype="float32"), w)} for v, w in parts])
    expected = sum(v for v, _ in parts) / sum(w for _, w in parts)
    assert metrics.read(merged)[0]["x"] == pytest.approx(expected, rel=1e-4, abs=1e-3)


class Model(paddle.nn.Layer):
    """Only its mode matters."""


def test_evaluation_weighs_tokens_and_leaves_mode_and_gradients_alone():
    objective, model = Mean(), Model()
    model.train()
    means = evaluate(objective, model, batches(ROWS))
    assert means["loss"] == pytest.approx(2 * (1 + 2 + 3 + 30) / 4)
    assert means["perplexity"] == pytest.approx(np.exp(means["loss"]), rel=1e-6)
    assert model.training
    assert objective.weight.grad is None


def test_evaluation_of_a_model_in_evaluation_mode_keeps_that_mode():
    model = Model()
    model.eval()
    evaluate(Mean(), model, batches(ROWS))
    assert not model.training


def test_evaluation_stops_after_the_given_batches():
    assert evaluate(Mean(), Model(), batches(ROWS), max_steps=1)["loss"] == pytest.approx(4.0)


def test_evaluation_gives_up_when_asked_to_stop():
    assert evaluate(Mean(), Model(), batches(ROWS), stop=lambda: "SIGTERM") == {}


def test_evaluation_of_nothing_is_empty():
    assert evaluate(Mean(), Model(), []) == {}


def test_hopeless_perplexity_does_not_overflow():
    objective = Mean()
    objective.weight.set_value(paddle.to_tensor([1e6]))
    assert np.isfinite(evaluate(objective, Model(), batches(ROWS))["perplexity"])
