"""Micro-batches of a step have about as many patches each, on all ranks, and every sequence stays in its step."""

from types import SimpleNamespace

import numpy as np
from erniecore_sampler.steps import PackedBatchSampler, SamplerSettings, balanced
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(0, 99), max_size=24), st.integers(1, 3), st.integers(1, 4))
def test_every_index_is_in_one_group_and_no_group_could_give_one_away(costs, more, size):
    groups = -(-len(costs) // size) + more
    found = balanced(costs, groups, size)
    assert sorted(i for members in found for i in members) == list(range(len(costs)))
    assert all(len(members) <= size for members in found)
    sums = [sum(costs[i] for i in members) for members in found]
    for members, total in zip(found, sums, strict=True):
        for i in members:  # without a full group in the way
            if costs[i] and all(len(other) < size for other in found):
                assert total - costs[i] <= min(sums)


def samples(count, sources=1):
    lengths = np.full(count, 8, np.int32)
    dataset = SimpleNamespace(lengths=lengths, files=["f"] * sources, source_sizes=lambda n: [count])
    return type("Data", (), {**vars(dataset), "__len__": lambda self: count, "source_sizes": lambda self, n: [count]})()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.sampled_from([(1, 6), (2, 3), (3, 2), (6, 1)]))
def test_steps_are_those_of_one_rank_whatever_the_number_of_ranks(patches, layout):
    ranks, accumulation = layout
    costs = np.array(patches)
    common = {"packing": "none", "batch_size": 2, "seed": 3}
    alone = PackedBatchSampler(samples(len(patches)), SamplerSettings(**common, accumulation=6), patches=costs)
    parts = [
        PackedBatchSampler(
            samples(len(patches)),
            SamplerSettings(**common, accumulation=accumulation, data_rank=rank, data_size=ranks),
            patches=costs,
        )
        for rank in range(ranks)
    ]
    for step in range(alone.steps_in_epoch()):
        whole = sorted(i for micro in alone.step(step) for sequence in micro for i in sequence)
        given = [part.step(step) for part in parts]
        assert len({len(micros) for micros in given}) == 1
        assert sorted(i for micros in given for micro in micros for s in micro for i in s) == whole
        assert all(len(micro) <= 2 for micros in given for micro in micros)


def test_two_ranks_share_large_images():
    costs = np.array([100, 0, 100, 0, 100, 0, 100, 0])
    settings = {"packing": "none", "batch_size": 4, "shuffle": False, "data_size": 2}
    sums = []
    for given_costs in (costs, np.sort(costs)):
        parts = [
            PackedBatchSampler(samples(8), SamplerSettings(**settings, data_rank=rank), patches=given_costs)
            for rank in (0, 1)
        ]
        sums += [given_costs[[i for s in part.step(0)[0] for i in s]].sum() for part in parts]
    assert sums == [200, 200, 200, 200]
