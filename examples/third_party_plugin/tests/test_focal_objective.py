"""The loss by hand."""

import numpy as np
import pytest

from erniecore.api.method import IGNORE
from erniecore_focal.encoder import FocalEncoder
from erniecore_focal.objective import FocalObjective


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_loss_by_hand(toy_policy, toy_tokenizer, toy_batch, gamma):
    import paddle

    batch = toy_batch(FocalEncoder(toy_tokenizer, 64))
    objective = FocalObjective(toy_policy, gamma=gamma)
    ends = paddle.to_tensor(batch.startend_row_indices)
    logits = toy_policy(paddle.to_tensor(batch.input_ids), startend_row_indices=ends).numpy()
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    learned = batch.labels != IGNORE
    p = np.take_along_axis(p[learned], batch.labels[learned][:, None], axis=1)
    found = float(objective(batch, objective.normalizers(batch)).loss)
    assert found == pytest.approx(float((-((1 - p) ** gamma) * np.log(p)).mean()), rel=1e-5)


def test_well_predicted_tokens_count_less():
    import paddle

    from erniecore_focal.objective import focal_weight

    weights = focal_weight(paddle.to_tensor([0.01, 1.0, 5.0]), gamma=2.0).numpy()
    assert weights[0] < 0.001
    assert weights[0] < weights[1] < weights[2] < 1


def test_prompt_is_not_learned_and_the_answer_ends_with_stop(toy_tokenizer, toy_batch):
    batch = toy_batch(FocalEncoder(toy_tokenizer, 64))
    labels = batch.labels[0][batch.labels[0] != IGNORE]
    assert toy_tokenizer.decode(labels.tolist(), skip_special=False) == "ant</s>"
