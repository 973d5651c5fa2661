"""Batches as a function of the step."""

import numpy as np
import pytest
from erniecore_sampler.mixing import Mix
from erniecore_sampler.order import is_eval_row
from erniecore_sampler.steps import PackedBatchSampler, SamplerSettings
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.data.dataloader import DataLoader
from erniecore.data.dataset import DatasetBuilder, Subset, concatenate
from erniecore.data.splits import train_eval_split
from erniecore.errors import DataError
from erniecore.types.records import Origin

PACKINGS = ["none", "padding-free", "sequential", "greedy"]


@pytest.fixture(scope="module")
def make_store(make_sample):
    def make(lengths, sources=None, fields=False):
        sources = sources or [0] * len(lengths)
        builder = DatasetBuilder([f"f{i}" for i in range(max(sources, default=0) + 1)])
        for i, (n, source) in enumerate(zip(lengths, sources, strict=True)):
            extra = {"w": np.full(n, i, np.float32)} if fields else None
            builder.add(make_sample(n, i + 1, extra, Origin(f"f{source}", i + 1)), i, source)
        return builder.finish()

    return make


def loader(store, *, rank=0, size=1, **settings):
    settings = {"max_seq_len": 16, "packing": "greedy", "seed": 5, **settings}
    sampling = SamplerSettings(data_rank=rank, data_size=size, **settings)
    return DataLoader(store, PackedBatchSampler(store, sampling), pad_id=0)


def lines(batches):
    return [o.line for b in batches for o in b.origins]


ROWS = np.arange(1000)
LENGTHS = st.lists(st.integers(1, 16), min_size=1, max_size=30)


@settings(deadline=None)
@given(LENGTHS, st.sampled_from(PACKINGS), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_an_epoch_holds_every_sample_once_over_all_ranks(make_store, lengths, packing, batch, accumulation, size):
    store = make_store(lengths)
    settings = {"packing": packing, "batch_size": batch, "accumulation": accumulation}
    loaders = [loader(store, rank=r, size=size, **settings) for r in range(size)]
    seen = []
    for epoch in range(2):
        for step in range(loaders[0].sampler.steps_in_epoch(epoch)):
            at = step + (loaders[0].sampler.steps_in_epoch(0) if epoch else 0)
            parts = [p.step(at) for p in loaders]
            assert len({len(part) for part in parts}) == 1
            assert 1 <= len(parts[0]) <= accumulation
            seen += [line for part in parts for line in lines(part)]
    assert sorted(seen) == sorted(list(range(1, len(lengths) + 1)) * 2)


@settings(deadline=None)
@given(LENGTHS, st.sampled_from(PACKINGS), st.integers(1, 3), st.sampled_from([(), (2, 1), (1, 3)]))
def test_static_shapes_are_all_alike_and_hold_the_share_of_tokens_that_is_said(
    make_store, lengths, packing, batch, shares
):
    store = make_store(lengths)
    common = {"packing": packing, "batch_size": batch, "accumulation": 2, "size": 2, "shares": shares}
    static, other = ([loader(store, rank=r, static_shapes=each, **common) for r in range(2)] for each in (True, False))
    batches = [b for each in static for b in each.epoch()]
    expected = (1, batch * 16) if packing == "padding-free" else (batch, 16)
    assert {b.input_ids.shape for b in batches} == {expected}
    assert {b.startend_row_indices.shape for b in batches} == {(expected[0], 1, expected[1], 1)}
    assert lines(batches) == lines(b for each in other for b in each.epoch())
    share = sum(b.num_tokens for b in batches) / (len(batches) * batch * 16)
    assert static[0].sampler.fill_rate() == pytest.approx(share, rel=1e-12)


@settings(deadline=None)
@given(LENGTHS, st.sampled_from(PACKINGS))
def test_how_a_step_is_dealt_does_not_change_what_is_in_it(make_store, lengths, packing):
    store = make_store(lengths)
    whole = loader(store, packing=packing, batch_size=4)
    split = loader(store, packing=packing, batch_size=1, accumulation=4)
    ranks = [loader(store, packing=packing, batch_size=2, rank=r, size=2) for r in range(2)]
    for step in range(whole.sampler.total_steps(2)):
        wanted = lines(whole.step(step))
        assert lines(split.step(step)) == wanted
        assert [line for r in ranks for line in lines(r.step(step))] == wanted


@settings(deadline=None)
@given(LENGTHS, st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 2))
def test_uneven_shares_split_the_same_steps(make_store, lengths, shares, batch):
    store = make_store(lengths)
    whole = loader(store, batch_size=batch, accumulation=sum(shares))
    ranks = [
        loader(store, batch_size=batch, rank=r, size=len(shares), shares=tuple(shares)) for r in range(len(shares))
    ]
    for step in range(whole.sampler.total_steps(2)):
        parts = [rank.step(step) for rank in ranks]
        assert sorted(line for part in parts for line in lines(part)) == sorted(lines(whole.step(step)))
        assert len({len(part) for part in parts}) == 1
        full = [sum(bool(batch.num_tokens) for batch in part) for part in parts]
        assert all(has <= share for has, share in zip(full, shares, strict=True))
        # of a step that is not full, nobody would be done earlier if another rank took one of the micro-batches
        longest = max(has / share for has, share in zip(full, shares, strict=True))
        assert all((has + 1) / share >= longest for has, share in zip(full, shares, strict=True))


def test_any_step_can_be_had_directly(make_store):
    store = make_store([3, 9, 4, 12, 7, 2, 2, 8] * 4)
    forward = loader(store, batch_size=2)
    all_steps = [lines(forward.step(i)) for i in range(forward.sampler.total_steps(3))]
    for i in (17, 3, 11, 0):
        assert lines(loader(store, batch_size=2).step(i)) == all_steps[i]


def test_epochs_have_different_orders_and_seeds_too(make_store):
    store = make_store([4] * 20)
    p = loader(store, packing="none", batch_size=20)
    assert lines(p.step(0)) != lines(p.step(1))
    other = loader(store, packing="none", batch_size=20, seed=6)
    assert lines(other.step(0)) != lines(p.step(0))


def test_without_shuffling_the_order_is_that_of_the_files(make_store):
    p = loader(make_store([4] * 6), packing="none", batch_size=4, shuffle=False)
    assert [lines([b]) for b in p.epoch()] == [[1, 2, 3, 4], [5, 6]]


def test_rank_without_a_row_gets_padding(make_store):
    parts = [loader(make_store([4]), rank=r, size=2).step(0) for r in range(2)]
    assert [b.num_tokens for part in parts for b in part] == [4, 0]


def test_padding_free_joins_the_batch_into_one_row(make_store):
    (batch,) = loader(make_store([4, 5, 6]), packing="padding-free", batch_size=3).step(0)
    assert batch.input_ids.shape == (1, 15)
    assert batch.num_samples == 3


def test_unpacked_rows_are_padded_to_the_longest(make_store):
    (batch,) = loader(make_store([4, 5, 6]), packing="none", batch_size=3).step(0)
    assert batch.input_ids.shape == (3, 6)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 3), (2, 6), (0.5, 2), (1.5, 5), (0.01, 1)])
def test_epochs_to_steps(make_store, epochs, steps):
    assert loader(make_store([4] * 5), packing="none", batch_size=2).sampler.total_steps(epochs) == steps


def test_locate(make_store):
    p = loader(make_store([4] * 5), packing="none", batch_size=2)
    assert [p.sampler.locate(i) for i in (0, 2, 3, 7)] == [(0, 0), (0, 2), (1, 0), (2, 1)]


def test_extra_fields_travel_with_their_samples(make_store):
    (batch,) = loader(make_store([4, 5], fields=True)).step(0)
    first = batch.input_ids[0, 0] // 1000
    assert (batch.fields["w"][0, :4] == first - 1).all()


def test_weights_give_exact_counts(make_store):
    store = make_store([1] * 12, sources=[0] * 2 + [1] * 10)
    p = loader(store, packing="none", batch_size=12, mix=Mix("weighted", (1.0, 2.0)))
    files = [o.file for b in p.step(0) for o in b.origins]
    assert (files.count("f0"), files.count("f1")) == (4, 8)


def test_holding_out_depends_on_seed_and_row_alone():
    assert np.array_equal(is_eval_row(1, ROWS, 0.2), is_eval_row(1, np.arange(5000), 0.2)[:1000])
    assert 150 < is_eval_row(1, ROWS, 0.2).sum() < 250
    assert not np.array_equal(is_eval_row(1, ROWS, 0.2), is_eval_row(2, ROWS, 0.2))


def test_held_out_and_training_rows_are_disjoint(make_store):
    store = make_store([3] * 50)
    train, evaluation = train_eval_split(store, 0.3, seed=1)
    assert sorted([*train.rows, *evaluation.rows]) == list(range(50))
    assert np.array_equal(evaluation[0].input_ids, store[int(evaluation.rows[0])].input_ids)


def test_holding_out_of_too_few_rows_holds_out_nothing(make_store):
    store = make_store([3])
    assert train_eval_split(store, 1e-9, seed=1) == (store, None)


def test_holding_out_everything_is_an_error(make_store):
    with pytest.raises(DataError, match="no row is left"):
        train_eval_split(make_store([3]), 0.999999, seed=1)


def test_empty_store_has_no_loader(make_store):
    with pytest.raises(ValueError, match="at least one"):
        loader(make_store([]))


def test_store_gives_back_samples_that_are_not_plain(make_sample):
    odd = make_sample(4)
    odd = type(odd)(odd.input_ids, odd.labels, np.array([0, 1, 1, 2]), np.array([4, 2, 4, 4], np.int32))
    builders = [DatasetBuilder(["f"]), DatasetBuilder(["f"])]
    builders[0].add(make_sample(3), 0, 0)
    builders[1].add(odd, 1, 0)
    store = concatenate([b.finish() for b in builders], ["f"])
    assert store[1].end_rows.tolist() == [4, 2, 4, 4]
    assert store[1].position_ids.tolist() == [0, 1, 1, 2]
    assert store[0].end_rows.tolist() == [3, 3, 3]
    assert store[0].position_ids.tolist() == [0, 1, 2]


def test_later_steps_are_found_without_packing_earlier_epochs(make_store):
    store = make_store([3, 9, 4, 12, 7, 2, 2, 8] * 4)
    first = loader(store, batch_size=2)
    last = first.sampler.total_steps(4) - 1
    counted = first.sampler.counted_sequences()
    again = PackedBatchSampler(store, first.sampler.settings, known_sequences=counted)
    packed = []
    make, again._packs = again._packs, lambda epoch: packed.append(epoch) or make(epoch)
    assert lines(DataLoader(store, again, pad_id=0).step(last)) == lines(first.step(last))
    assert packed == [3]


def test_rows_of_a_split_are_identified_by_their_tokens(make_store):
    store = make_store([4] * 9)
    assert loader(store).dataset.fingerprint() == loader(make_store([4] * 9)).dataset.fingerprint()
    assert loader(store).dataset.fingerprint() != loader(make_store([4] * 8 + [5])).dataset.fingerprint()
    train, evaluation = train_eval_split(store, 0.5, seed=1)
    assert len({p.fingerprint() for p in (store, train, evaluation)}) == 3


def test_subset_has_the_sizes_of_its_sources(make_store):
    store = make_store([2] * 9, sources=[0, 0, 0, 1, 1, 1, 1, 3, 3])
    assert Subset(store, np.array([1, 2, 3, 6, 8])).source_sizes(4) == [2, 2, 0, 1]
