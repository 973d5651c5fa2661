"""The schedule by hand, windows that lose no token, and what a model computes in them."""

from itertools import pairwise

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.data import collate
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_progressive.schedule import Stage, fewer, shortened, stage

from erniecore.api.method import Sample

START, END = Stage(8, 0.25, 0.0), Stage(64, 1.0, 0.1)


def test_everything_grows_linearly_and_together():
    assert stage(1, 4, START, END) == START
    assert stage(3, 4, START, END) == Stage(36, 0.625, pytest.approx(0.05))
    assert stage(5, 4, START, END) == stage(99, 4, START, END) == END
    assert stage(1, 0, START, END) == END
    found = [stage(step, 10, START, END) for step in range(1, 13)]
    for one, two in pairwise(found):
        assert (one.length <= two.length, one.batch <= two.batch, one.dropout <= two.dropout) == (True, True, True)


def test_of_a_step_the_first_micro_batches_stay():
    for fraction, count in ((0.25, 2), (0.3, 3), (0.5, 4), (1.0, 8), (0.01, 1)):
        assert fewer(list(range(8)), fraction) == list(range(count))


def sample(n, first):
    ids = np.arange(first, first + n, dtype=np.int64)
    return Sample(ids, ids + 1, np.arange(n), np.full(n, n, np.int32))


def test_windows_by_hand():
    batch = collate([[sample(5, 3), sample(4, 10)], [sample(3, 20)]], padding=1)
    found = shortened(batch, 2)
    assert found.position_ids[0, :9].tolist() == [0, 1, 0, 1, 0, 0, 1, 0, 1]
    assert found.startend_row_indices[0, 0, :9, 0].tolist() == [2, 2, 4, 4, 5, 7, 7, 9, 9]
    assert found.startend_row_indices[1, 0, :, 0].tolist()[:3] == [2, 2, 3]
    padding = np.arange(batch.input_ids.shape[1])[3:]
    assert (found.startend_row_indices[1, 0, 3:, 0] == padding).all()
    for name in ("input_ids", "labels"):
        assert (getattr(found, name) == getattr(batch, name)).all()
    assert found.num_tokens == batch.num_tokens


def test_a_window_is_computed_as_a_text_of_its_own():
    model, batch = toy_model(), collate([[sample(7, 3), sample(6, 2)]])
    found = shortened(batch, 3)
    given = {"position_ids": found.position_ids, "startend_row_indices": found.startend_row_indices}
    logits = model(paddle.to_tensor(found.input_ids), **{k: paddle.to_tensor(v) for k, v in given.items()}).numpy()[0]
    for start, stop in ((0, 3), (3, 6), (6, 7), (7, 10), (10, 13)):
        alone = model(paddle.to_tensor(found.input_ids[:, start:stop])).numpy()[0]
        np.testing.assert_allclose(logits[start:stop], alone, atol=2e-5)


def test_windows_as_long_as_the_texts_change_nothing():
    batch = collate([[sample(7, 3), sample(6, 2)]], padding=2)
    found = shortened(batch, 7)
    assert (found.startend_row_indices == batch.startend_row_indices).all()
    assert (found.position_ids == batch.position_ids).all()
