"""Which layers a part of a pipeline has."""

from itertools import combinations, pairwise

import pytest
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.split import Costs, balanced, choose_split, costs_of, ranges
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.api import ConfigError
from erniecore.api.parallel import DecoderShape, LayerShape

few = settings(deadline=None, max_examples=60)
DENSE = LayerShape(heads=16, kv_heads=2, head_dim=128, mlp=3072)
SMALL = DecoderShape(hidden=1024, vocab=103_424, tied=True, layers=(DENSE,) * 18)


@few
@given(st.lists(st.integers(1, 9), min_size=2, max_size=8), st.integers(0, 20), st.integers(0, 20), st.data())
def test_no_split_has_a_cheaper_most_expensive_part(layers, first, last, data):
    num_stages = data.draw(st.integers(2, len(layers)))
    speeds = tuple(data.draw(st.lists(st.floats(0.5, 2), min_size=num_stages, max_size=num_stages)))
    costs = Costs(tuple(map(float, layers)), float(first), float(last))
    cuts = ([0, *inner, len(layers)] for inner in combinations(range(1, len(layers)), num_stages - 1))
    every = [[b - a for a, b in pairwise(cut)] for cut in cuts]
    found = balanced(costs, num_stages)
    assert max(costs.per_stage(found)) == min(max(costs.per_stage(split)) for split in every)
    slow = min(max(c / v for c, v in zip(costs.per_stage(split), speeds, strict=True)) for split in every)
    uneven = balanced(costs, num_stages, speeds)
    assert max(c / v for c, v in zip(costs.per_stage(uneven), speeds, strict=True)) == pytest.approx(slow)
    assert [index for stage in ranges(found) for index in stage] == list(range(len(layers)))


def test_the_head_makes_the_last_part_shorter():
    split = choose_split(HybridConfig(pipeline=4), SMALL)
    assert sum(split) == 18
    assert split[-1] < min(split[:-1])


def test_prediction_layers_are_counted_on_the_last_part():
    ahead = DecoderShape(SMALL.hidden, SMALL.vocab, True, SMALL.layers, mtp_layers=(DENSE,))
    assert costs_of(ahead).last > 2 * costs_of(SMALL).last
    assert choose_split(HybridConfig(pipeline=2), ahead)[-1] < choose_split(HybridConfig(pipeline=2), SMALL)[-1]


def test_equal_layers_without_a_head_are_divided_evenly():
    assert balanced(Costs((1.0,) * 10, 0.0, 0.0), 4) in [(2, 3, 3, 2), (3, 2, 3, 2), (3, 3, 2, 2), (2, 2, 3, 3)]


@pytest.mark.parametrize(
    ("values", "shape", "key", "text"),
    [
        ({"pipeline": 19}, SMALL, "parallel.pipeline", "19 virtual stages for a model of 18 layers"),
        ({"pipeline": 4, "chunks": 5}, SMALL, "parallel.chunks", "20 virtual stages for a model of 18 layers"),
        ({"pipeline": 2, "split": [9, 8]}, SMALL, "parallel.split", "17 layers in all"),
        ({"pipeline": 2, "split": [18, 0]}, SMALL, "parallel.split", "none of them less than 1"),
        ({"pipeline": 2, "split": [6, 6, 6]}, SMALL, "parallel.split", "3 numbers for 2"),
        ({"pipeline": 2}, None, "parallel.pipeline", "does not say what its layers are like"),
        ({"chunks": 2}, SMALL, "parallel.chunks", "no meaning without parallel.pipeline"),
        ({"split": [18]}, SMALL, "parallel.split", "no meaning without parallel.pipeline"),
    ],
)
def test_impossible_splits_are_refused_by_their_key(values, shape, key, text):
    with pytest.raises(ConfigError, match=text) as caught:
        choose_split(HybridConfig(**values), shape)
    assert [problem.key for problem in caught.value.problems] == [key]
