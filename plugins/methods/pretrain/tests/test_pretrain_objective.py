"""With and without borders between documents; every token of a step weighs the same."""

from dataclasses import replace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_pretrain.objective import PretrainObjective, without_borders

from erniecore.api.corpus import collate
from erniecore.api.method import IGNORE, Batch, Sample


def document(ids, more=None):
    """A sample whose last position predicts ``more`` (the document goes on) or nothing."""
    ids = np.asarray(ids, np.int64)
    n = len(ids)
    return Sample(ids, np.append(ids[1:], IGNORE if more is None else more), np.arange(n), np.full(n, n, np.int32))


def three_documents():
    """Two rows: documents of 3, 2 and 1 tokens and padding; one of 8 that goes on."""
    rows = [[document([5, 6, 2]), document([7, 2]), document([9])], [document(range(10, 18), more=18)]]
    return collate(rows, pad_id=0)


def test_without_borders_a_row_is_one_text():
    made = without_borders(three_documents())
    assert made.labels.tolist() == [[6, 2, 7, 2, 9, IGNORE, IGNORE, IGNORE], [11, 12, 13, 14, 15, 16, 17, 18]]
    assert made.position_ids[0, :6].tolist() == [0, 1, 2, 3, 4, 5]
    assert made.startend_row_indices[:, 0, :, 0].tolist() == [[6] * 6 + [6, 7], [8] * 8]


def test_padding_stays_unseen():
    before, after = three_documents(), without_borders(three_documents())
    assert after.startend_row_indices[0, 0, 6:, 0].tolist() == [6, 7]
    assert after.position_ids[0, 6:].tolist() == before.position_ids[0, 6:].tolist()


def test_the_batch_that_was_given_stays():
    made = three_documents()
    copies = [getattr(made, n).copy() for n in ("input_ids", "labels", "position_ids", "startend_row_indices")]
    without_borders(made)
    for name, copy in zip(("input_ids", "labels", "position_ids", "startend_row_indices"), copies, strict=True):
        np.testing.assert_array_equal(getattr(made, name), copy)


def loss(policy, batches, **options):
    objective = PretrainObjective(policy, **options)
    totals = {}
    for batch in batches:
        for name, value in objective.normalizers(batch).items():
            totals[name] = totals.get(name, 0.0) + value
    policy.clear_gradients()
    outputs = [objective(batch, totals) for batch in batches]
    for output in outputs:
        output.loss.backward()
    gradients = {n: p.grad.numpy().copy() for n, p in policy.named_parameters() if p.grad is not None}
    return sum(float(o.loss) for o in outputs), gradients


def joined(batch: Batch) -> Batch:
    """The same rows built as one document each."""
    rows = [[document([5, 6, 2, 7, 2, 9])], [document(range(10, 18), more=18)]]
    made = collate(rows, pad_id=0)
    return replace(made, num_samples=batch.num_samples, origins=batch.origins)


def test_without_borders_the_loss_is_that_of_one_document():
    policy, batch = toy_model(), three_documents()
    found, gradients = loss(policy, [batch], document_mask=False)
    expected, wanted = loss(policy, [joined(batch)])
    assert found == pytest.approx(expected, rel=1e-6)
    for name, value in wanted.items():
        np.testing.assert_allclose(gradients[name], value, atol=1e-6)


def test_a_document_does_not_see_the_one_before():
    policy, batch = toy_model(), three_documents()
    other = batch.input_ids.copy()
    other[0, 0] = 50
    changed = replace(batch, input_ids=other, labels=np.where(np.arange(8) < 3, IGNORE, batch.labels))
    plain = replace(batch, labels=changed.labels)
    assert loss(policy, [changed])[0] == loss(policy, [plain])[0]
    without = [loss(policy, [b], document_mask=False)[0] for b in (changed, plain)]
    assert abs(without[0] - without[1]) > 1e-6


@pytest.mark.parametrize("document_mask", [True, False])
def test_every_token_weighs_the_same_in_whichever_micro_batch(document_mask):
    policy, batch = toy_model(), three_documents()
    halves = [collate([row], pad_id=0) for row in ([document([5, 6, 2]), document([7, 2]), document([9])],)]
    halves.append(collate([[document(range(10, 18), more=18)]], pad_id=0))
    whole, gradients = loss(policy, [batch], document_mask=document_mask)
    split, parts = loss(policy, halves, document_mask=document_mask)
    assert split == pytest.approx(whole, rel=1e-6)
    for name, value in gradients.items():
        np.testing.assert_allclose(parts[name], value, atol=1e-6)


def test_loss_tokens_are_counted_over_borders():
    batch, policy = three_documents(), toy_model()
    assert PretrainObjective(policy).normalizers(batch)["tokens"] == 11
    assert PretrainObjective(policy, document_mask=False).normalizers(batch)["tokens"] == 13


def test_paddle_batches_of_padding_only_have_no_loss():
    empty = collate([[]], pad_id=0, length=8)
    for mask in (True, False):
        output = PretrainObjective(toy_model(), document_mask=mask)(empty, {"tokens": 0.0, "seen": 0.0})
        assert float(output.loss) == 0.0
        assert isinstance(output.loss, paddle.Tensor)
