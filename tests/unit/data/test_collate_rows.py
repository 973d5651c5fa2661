"""Samples in batches, and back out of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore.data.collate import collate
from erniecore.types.samples import IGNORE

ROWS = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4)


@given(ROWS, st.booleans())
def test_a_batch_holds_every_sample_unchanged(make_sample, shape, with_fields):
    tag = iter(range(1, 100))
    rows = [
        [make_sample(n, next(tag), {"w": np.arange(n, dtype=np.float32)} if with_fields else None) for n in row]
        for row in shape
    ]
    batch = collate(rows, pad_id=0)
    for i, row in enumerate(rows):
        start = 0
        for sample in row:
            part = slice(start, start + len(sample))
            assert np.array_equal(batch.input_ids[i, part], sample.input_ids)
            assert np.array_equal(batch.labels[i, part], sample.labels)
            assert np.array_equal(batch.position_ids[i, part], sample.position_ids)
            assert np.array_equal(batch.startend_row_indices[i, 0, part, 0] - start, sample.end_rows)
            assert all(np.array_equal(batch.fields[k][i, part], v) for k, v in sample.fields.items())
            start += len(sample)
        assert (batch.input_ids[i, start:] == 0).all()
        assert (batch.labels[i, start:] == IGNORE).all()
    assert batch.num_tokens == sum(map(sum, shape))
    assert batch.num_samples == len(batch.origins) == sum(map(len, shape))


def visible(batch, row):
    """bool [S, S] as attention sees it: query may look at key."""
    ends = batch.startend_row_indices[row, 0, :, 0]
    query, key = np.indices((len(ends), len(ends)))
    return (key <= query) & (query < ends[key])


@given(ROWS)
def test_samples_never_see_each_other_nor_padding(make_sample, shape):
    batch = collate([[make_sample(n) for n in row] for row in shape], pad_id=0)
    for i, row in enumerate(shape):
        owner = np.concatenate([np.repeat(np.arange(len(row)), row), np.full(batch.input_ids.shape[1] - sum(row), -1)])
        causal = np.tril(np.ones((len(owner), len(owner)), bool))
        wanted = causal & (owner[:, None] == owner[None, :]) & (owner[None, :] >= 0)
        assert np.array_equal(visible(batch, i), wanted)


def test_types_and_shapes(make_sample):
    batch = collate([[make_sample(3)], [make_sample(5)]], pad_id=7)
    assert batch.input_ids.dtype == batch.labels.dtype == batch.position_ids.dtype == np.int64
    assert batch.startend_row_indices.dtype == np.int32
    assert batch.input_ids.shape == (2, 5)
    assert batch.startend_row_indices.shape == (2, 1, 5, 1)


def test_width_can_be_given_or_rounded_up(make_sample):
    assert collate([[make_sample(3)]], pad_id=0, length=10).input_ids.shape == (1, 10)
    assert collate([[make_sample(9)]], pad_id=0, multiple=8).input_ids.shape == (1, 16)


def test_row_of_padding_only():
    batch = collate([[]], pad_id=0, length=4)
    assert (batch.num_tokens, batch.num_samples) == (0, 0)
    assert not visible(batch, 0).any()


def test_row_that_does_not_fit(make_sample):
    with pytest.raises(ValueError, match="6 tokens does not fit into 5"):
        collate([[make_sample(3), make_sample(3)]], pad_id=0, length=5)


def test_samples_with_different_fields_do_not_mix(make_sample):
    with pytest.raises(ValueError, match="different fields"):
        collate([[make_sample(3, fields={"w": np.zeros(3)}), make_sample(3)]], pad_id=0)
