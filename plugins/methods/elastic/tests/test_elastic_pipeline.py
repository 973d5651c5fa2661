"""Skipping by groups of chunks: as much work is left on each stage, and nearly all of the time of what is skipped is saved."""

import random

import pytest
from erniecore_elastic.pipeline import PipelineShape, groups, retained, simulated, skipped_chunks
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPES = [PipelineShape(2, 2, (2, 2, 2, 2)), PipelineShape(4, 3, (3,) * 12), PipelineShape(8, 2, (3,) * 16)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_group_has_one_chunk_of_each_stage_and_most_chunks_have_one(shape):
    starts, slot = simulated(shape, 32).starts, 3 * max(shape.split)
    found = groups(shape, 32)
    assert len(found) > 0.7 * 32 * shape.chunks
    for group in found:
        assert sorted(virtual_stage % shape.stages for _, virtual_stage in group.members) == list(range(shape.stages))
        assert len({starts[(False, *member)] // slot for member in group.members}) == 1


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SHAPES), st.integers(1, 16), st.floats(0.1, 1), st.integers(0, 2**31))
def test_every_stage_keeps_as_much_work_and_the_ends_of_the_model_always_run(shape, micros, retain, seed):
    skipped = skipped_chunks(shape, micros, retain, seed)
    assert len(set(retained(shape, skipped))) == 1
    gone = set().union(*skipped.values())
    assert not gone & {0, sum(shape.split) - 1}
    assert skipped == skipped_chunks(shape, micros, retain, seed)


@pytest.mark.parametrize("shape", SHAPES)
def test_groups_save_their_time_and_as_many_single_chunks_do_not(shape):
    """Seconds saved over seconds that a stage computes less, as means of several draws."""
    micros, whole = 24, simulated(shape, 24)
    groups_of_chunks, single = [], []
    for seed in range(8):
        skipped = skipped_chunks(shape, micros, 0.9, seed)
        groups_of_chunks.append(share(whole, simulated(shape, micros, skipped)))
        single.append(share(whole, simulated(shape, micros, scattered(shape, skipped, seed))))
    assert sum(groups_of_chunks) / 8 >= 0.85
    assert sum(groups_of_chunks) / 8 >= sum(single) / 8 + 0.1


def share(whole, found):
    return (whole.seconds - found.seconds) / (max(whole.busy) - max(found.busy))


def scattered(shape, skipped, seed):
    """As many layers of each virtual stage, skipped in micro-steps that know nothing of each other."""
    rng, micros = random.Random(seed), list(skipped)
    found = {micro: set() for micro in micros}
    for place in set().union(*skipped.values()):
        for micro in rng.sample(micros, sum(place in places for places in skipped.values())):
            found[micro].add(place)
    return {micro: frozenset(places) for micro, places in found.items()}


def test_whole_micro_steps_and_a_probability_of_one_skip_nothing():
    shape = SHAPES[1]
    assert not set().union(*skipped_chunks(shape, 12, 1.0, 3).values())
    skipped = skipped_chunks(shape, 12, 0.1, 3, whole=2)
    assert not skipped[0] | skipped[1]
    assert set().union(*skipped.values())
