"""Batches of token files: every pair of neighboring tokens once, in an order that neither ranks nor splits change."""

import itertools
from collections import Counter

import numpy as np
import pytest
from erniecore_token_files.reading import DTYPES, open_token_file
from erniecore_token_files.sampler import TokenFileDataset, TokenFileSampler
from erniecore_token_files.spans import TokenSpan, split_tail
from erniecore_token_files.writing import TokenFileWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.api.corpus import DataLoader, Mix, SamplerSettings
from erniecore.api.data import IGNORE


def corpus(directory, documents, name="c"):
    with TokenFileWriter(directory / name, DTYPES[4]) as writer:
        for document in documents:
            writer.add(np.asarray(document, np.int64), np.asarray([len(document)]))
    return open_token_file(directory / name)


def numbered(directory, lengths, first=0, name="c"):
    """Documents whose tokens are consecutive numbers, so that every token is known by its id."""
    edges = np.cumsum([first, *lengths])
    return corpus(directory, [np.arange(a, b) for a, b in itertools.pairwise(edges)], name)


def loader(*spans, rank=0, size=1, seed=3, length=8, **options):
    chosen = SamplerSettings(max_seq_len=length, seed=seed, data_rank=rank, data_size=size, packing="none", **options)
    dataset = TokenFileDataset(spans, length)
    return DataLoader(dataset, TokenFileSampler(dataset, chosen), pad_id=0)


def plan(*files, **options):
    return loader(*(TokenSpan.whole(f) for f in files), **options)


def pairs(batches):
    found = Counter()
    for batch in batches:
        learned = batch.labels != IGNORE
        found.update(zip(batch.input_ids[learned].tolist(), batch.labels[learned].tolist(), strict=True))
    return found


def rows_of(batches):
    return [tuple(row) for batch in batches for row in batch.input_ids.tolist()]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 23), min_size=1, max_size=12), st.integers(2, 9), st.booleans())
def test_every_pair_of_a_document_is_learned_once_per_epoch(tmp_path_factory, lengths, length, shuffle):
    lengths = [*lengths, 3]
    made = plan(numbered(tmp_path_factory.mktemp("c"), lengths), length=length, batch_size=2, shuffle=shuffle)
    edges = np.cumsum([0, *lengths])
    expected = Counter((i, i + 1) for a, b in itertools.pairwise(edges) for i in range(a, b - 1))
    assert pairs(made.epoch(0)) == expected
    assert pairs(made.epoch(1)) == expected


def test_documents_of_one_sample_are_isolated(tmp_path):
    (batch,) = plan(numbered(tmp_path, [3, 4, 5]), length=16, shuffle=False).step(0)
    assert batch.input_ids.tolist() == [list(range(11))]
    assert batch.labels[0].tolist() == [1, 2, IGNORE, 4, 5, 6, IGNORE, 8, 9, 10, 11]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3]
    assert batch.startend_row_indices[0, 0, :, 0].tolist() == [3] * 3 + [7] * 4 + [11] * 4


def test_a_document_that_ends_with_its_sample_predicts_nothing_of_the_next(tmp_path):
    made = plan(numbered(tmp_path, [4, 5]), length=4, shuffle=False, batch_size=2)
    (batch,) = made.step(0)
    assert batch.labels.tolist() == [[1, 2, 3, IGNORE], [5, 6, 7, 8]]


def test_origins_name_the_document(tmp_path):
    (batch,) = plan(numbered(tmp_path, [4, 5, 9]), length=4, shuffle=False, batch_size=4).step(0)
    assert [o.line for o in batch.origins] == [1, 2, 2, 3]
    assert batch.origins[0].file.endswith("c.bin")


@pytest.mark.parametrize(
    ("size", "batch_size", "accumulation"), [(1, 1, 8), (2, 2, 2), (4, 1, 2), (8, 1, 1), (1, 8, 1)]
)
def test_ranks_and_splits_change_nothing_but_the_dealing(tmp_path, size, batch_size, accumulation):
    file = numbered(tmp_path, [37, 5, 61, 40, 9, 2, 80])
    straight = plan(file, batch_size=8)
    batches = [plan(file, rank=r, size=size, batch_size=batch_size, accumulation=accumulation) for r in range(size)]
    for step in range(2 * straight.sampler.steps_in_epoch(0)):
        parts = [p.step(step) for p in batches]
        assert len({len(part) for part in parts}) == 1
        rows = [
            row
            for micro in zip(*parts, strict=True)
            for batch in micro
            for row in rows_of([batch])
            if batch.num_samples
        ]
        assert pairs(b for part in parts for b in part) == pairs(straight.step(step))
        assert [r[0] for r in rows] == [r[0] for r in rows_of(straight.step(step))]


def test_a_rank_without_rows_gets_padding(tmp_path):
    made = plan(numbered(tmp_path, [9]), rank=1, size=2)
    (batch,) = made.step(0)
    assert (batch.num_tokens, batch.num_samples) == (0, 0)
    assert (batch.labels == IGNORE).all()


def test_orders_differ_by_epoch_and_seed_and_repeat(tmp_path):
    file = numbered(tmp_path, [400])
    made = plan(file)
    first, second = rows_of(made.epoch(0)), rows_of(made.epoch(1))
    assert first == rows_of(plan(file).epoch(0))
    assert sorted(first) == sorted(second)
    assert first != second
    assert first != rows_of(plan(file, seed=4).epoch(0))


def test_a_step_alone_equals_the_step_in_its_place(tmp_path):
    file = numbered(tmp_path, [100, 50])
    walked = plan(file, batch_size=4)
    steps = [rows_of(walked.step(i)) for i in range(12)]
    assert rows_of(plan(file, batch_size=4).step(11)) == steps[11]


def test_a_blend_has_its_weights_at_every_step(tmp_path):
    one, two = numbered(tmp_path, [801]), numbered(tmp_path, [161], first=5000, name="d")
    made = plan(one, two, mix=Mix("weighted", weights=(1, 3)), batch_size=8)
    seen = 0
    for step in range(10):
        seen += sum(row[0] >= 5000 for row in rows_of(made.step(step)))
        assert abs(seen - 6 * (step + 1)) <= 2


def test_a_small_source_is_used_up_before_it_repeats(tmp_path):
    one, two = numbered(tmp_path, [801]), numbered(tmp_path, [161], first=5000, name="d")
    made = plan(one, two, mix=Mix("weighted", weights=(1, 1)), batch_size=1)
    rows = [row for row in rows_of(made.epoch(0)) if row[0] >= 5000]
    assert len(set(rows[:20])) == 20
    assert len(rows) == 60
    assert set(Counter(rows).values()) == {3}


def test_concat_takes_every_sample_of_every_source_once(tmp_path):
    one, two = numbered(tmp_path, [101]), numbered(tmp_path, [41], first=5000, name="d")
    rows = rows_of(plan(one, two).epoch(0))
    assert len(rows) == len(set(rows)) == 13 + 5
    unshuffled = rows_of(plan(one, two, shuffle=False).epoch(0))
    assert [row[0] for row in unshuffled] == [*range(0, 101, 8), *range(5000, 5040, 8)]


def test_epochs_and_steps(tmp_path):
    made = plan(numbered(tmp_path, [161]), batch_size=3)
    assert len(made.dataset) == 20
    assert made.sampler.steps_in_epoch(0) == 7
    assert [made.sampler.total_steps(e) for e in (0.1, 1, 1.5, 2)] == [1, 7, 11, 14]
    assert made.sampler.fill_rate() == 1.0


def test_the_tail_is_held_out_by_whole_documents(tmp_path):
    file = numbered(tmp_path, [10, 10, 10, 10, 10, 10, 10, 10, 10, 9])
    train, tail = split_tail(file, 0.2)
    assert (train.start, train.stop, tail.start, tail.stop) == (0, 80, 80, 99)
    assert (train.num_documents, tail.num_documents) == (8, 2)
    learned = plan(file)
    both = [loader(s, seed=0) for s in (train, tail)]
    assert not pairs(both[0].epoch()) & pairs(both[1].epoch())
    assert sum((pairs(p.epoch()) for p in both), Counter()) == pairs(learned.epoch())


def test_nothing_is_held_out_of_one_document(tmp_path):
    file = numbered(tmp_path, [50])
    train, tail = split_tail(file, 0.1)
    assert tail is None
    assert train.num_tokens == 50


def test_the_fingerprint_tells_splits_apart(tmp_path):
    file = numbered(tmp_path, [10] * 10)
    train, _ = split_tail(file, 0.2)
    of = [TokenFileDataset([s], 8).fingerprint() for s in (train, train, TokenSpan.whole(file))]
    assert of[0] == of[1] != of[2]


def test_one_token_is_too_few(tmp_path):
    with pytest.raises(ValueError, match="two tokens"):
        plan(numbered(tmp_path, [1]))
