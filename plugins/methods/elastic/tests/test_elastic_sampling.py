"""What micro-steps run: a function of settings, seed and micro-step, with the shares that the paper gives."""

from collections import Counter

import pytest
from erniecore_elastic.config import ElasticPretrainConfig
from erniecore_elastic.sampling import WHOLE, draw, even_layers

from erniecore.api.model import ElasticSizes

SIZES = ElasticSizes(8, 16, 4, 9)
ALL = ElasticPretrainConfig(depths=[5, 6], widths=[8], selected=[1, 2])

#: seed of a step, layers, experts per token of its first micro-step; seeds up to 11 that are not here have all of both
GOLDEN = [
    (3, (0, 1, 2, 3, 5, 7), 1),
    (4, (0, 3, 4, 5, 6, 7), None),
    (5, None, 2),
    (7, (0, 1, 5, 6, 7), None),
    (8, (0, 1, 3, 4, 6, 7), None),
    (9, (0, 2, 4, 5, 6, 7), None),
    (10, (0, 3, 4, 5, 7), None),
]
#: the first row of the first draw with fewer experts
GOLDEN_EXPERTS = (1, 4, 5, 7, 9, 12, 13, 14)


def drawn(config, count=4000):
    return [draw(config, SIZES, seed, micro) for seed in range(count // 4) for micro in range(4)]


def test_golden_draws_that_no_release_of_numpy_may_change():
    assert draw(ALL, SIZES, 7, 3) == WHOLE
    found = [(seed, draw(ALL, SIZES, seed, 0)) for seed in range(12)]
    assert [(seed, one.layers, one.num_selected) for seed, one in found if one.layers or one.num_selected] == GOLDEN
    first = next(one.experts[0] for _, one in found if one.experts)
    assert first == GOLDEN_EXPERTS


def test_shares_and_sizes_are_those_of_the_settings():
    found = drawn(ALL)
    depth, width, k = ([getattr(one, axis) for one in found] for axis in ("layers", "experts", "num_selected"))
    for values, share in ((depth, 0.25), (width, 0.2), (k, 0.2)):
        assert sum(value is not None for value in values) / len(found) == pytest.approx(share, abs=0.02)
    shallow = [layers for layers in depth if layers]
    assert Counter(map(len, shallow)).keys() == {5, 6}
    assert all(layers[0] == 0 and layers[-1] == 7 and sorted(set(layers)) == list(layers) for layers in shallow)
    assert {place for layers in shallow for place in layers} == set(range(8))
    narrow = [experts for experts in width if experts]
    assert all(len(experts) == 9 and {len(row) for row in experts} == {8} for experts in narrow)
    assert len({row for experts in narrow for row in experts}) > len(narrow)  # other ones in each row
    assert Counter(one for one in k if one).keys() == {1, 2}


def test_an_axis_that_is_off_changes_nothing_of_the_others():
    alone = ElasticPretrainConfig(selected=[1, 2])
    for one, other in zip(drawn(alone, 400), drawn(ALL, 400), strict=True):
        assert (one.layers, one.experts) == (None, None)
        assert one.num_selected == other.num_selected


def test_the_first_micro_steps_run_the_whole_model():
    always = {"depth_probability": 1.0, "width_probability": 1.0, "selected_probability": 1.0}
    config = ALL.model_copy(update={"whole": 2, **always})
    for seed in range(20):
        assert [draw(config, SIZES, seed, micro).is_whole for micro in range(4)] == [True, True, False, False]
    none = ALL.model_copy(update=dict.fromkeys(always, 0.0))
    assert {draw(none, SIZES, seed, 0) for seed in range(50)} == {WHOLE}


def test_expert_parallel_ranks_keep_as_many_experts_each():
    config = ALL.model_copy(update={"width_probability": 1.0, "expert_groups": 4})
    for one in drawn(config, 40):
        for row in one.experts:
            assert Counter(expert // 4 for expert in row) == dict.fromkeys(range(4), 2)


def test_a_token_never_goes_to_more_experts_than_there_are():
    config = ElasticPretrainConfig(widths=[2], width_probability=1.0)
    assert {one.num_selected for one in drawn(config, 40)} == {2}


def test_layers_that_are_evenly_spaced():
    assert even_layers(8, 6) == (0, 1, 3, 4, 6, 7)
    assert even_layers(28, 14) == (0, 2, 4, 6, 8, 10, 12, 15, 17, 19, 21, 23, 25, 27)
    for total in range(2, 30):
        for count in range(2, total + 1):
            found = even_layers(total, count)
            assert (found[0], found[-1], len(set(found))) == (0, total - 1, count)
    assert draw(ALL.model_copy(update={"depth_probability": 1.0, "layer_choice": "even", "depths": [6]}), SIZES, 0, 0)[
        0
    ] == even_layers(8, 6)
    with pytest.raises(ValueError, match="choose 2 to 8"):
        even_layers(8, 1)
