"""Messages beside the computation: gradients that are summed during the backward pass, and parameters that are gathered ahead
(stage 3). The bits are those without, and messages begin before what they run beside has ended."""

from pathlib import Path

import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_conformance.processes import on_ranks

HELPERS = Path(__file__).with_name("overlap_helpers.py")
RUNS = Path(__file__).with_name("hybrid_helpers.py")
WITHOUT = {"parallel__overlap_gradients": "false", "parallel__prefetch": 0}
SMALL = {"train__batch_size": 1, "train__accumulation": 2, "train__max_steps": 4}
STAGE_1 = {"parallel__sharding": 2}
STAGE_2 = {**STAGE_1, "parallel__sharding_stage": 2}
STAGE_3 = {**STAGE_1, "parallel__sharding_stage": 3}
PIPELINE = {"parallel__pipeline": 2, "train__accumulation": 4}
#: processes -> (model and method, layout, what overlaps)
CASES = {
    2: [
        ({"model": "deep"}, {"parallel__data": 2}, {}),
        ({"model": "moe", "method": "dpo"}, {"parallel__data": 2, "parallel__expert": 2}, {}),
        ({"model": "untied", "train__recompute": "full"}, STAGE_1, {}),
        ({"model": "deep", "optimizer__name": "lisa", "optimizer__layers": 1, "optimizer__period": 2}, STAGE_1, {}),
        ({"model": "moe-mtp"}, STAGE_2, {}),
        *(({"model": "deep"}, STAGE_3, {"parallel__prefetch": ahead}) for ahead in (1, 3)),
        ({"model": "deep-untied", "train__recompute": "full"}, STAGE_3, {"parallel__prefetch": 2}),
        ({"model": "moe-mtp", "method": "dpo"}, STAGE_3, {}),
        ({"model": "deep", "adapter__name": "lora", "adapter__rank": 4}, STAGE_3, {}),
    ],
    4: [
        ({"model": "deep"}, {"parallel__data": 4}, {}),
        ({"model": "deep"}, {"parallel__data": 2, **PIPELINE}, {}),
        *(
            ({"model": "moe"}, {**stage, "parallel__data": 2, "parallel__expert": 2}, {})
            for stage in (STAGE_2, STAGE_3)
        ),
        ({"model": "deep-untied"}, {**STAGE_3, **PIPELINE, "parallel__chunks": 2}, {}),
        ({"model": "untied"}, {**STAGE_3, "parallel__context": 2, "parallel__context_attention": "ring"}, {}),
    ],
}


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("count", sorted(CASES))
def test_the_bits_are_those_without(words, tmp_path, count):
    pairs = []
    for index, (what, layout, more) in enumerate(CASES[count]):
        both = {**SMALL, **what, **layout, "parallel__name": "hybrid", "checkpoint__export": "false"}
        pairs += [
            words(tmp_path / f"{index}-with", **both, **more),
            words(tmp_path / f"{index}-without", **both, **WITHOUT),
        ]
    on_ranks(count, f"{RUNS}:runs", pairs, limit=1800.0)
    for index in range(len(CASES[count])):
        one, other = (
            load_checkpoint(tmp_path / f"{index}-{kind}" / "ckpt" / "step-00000004").tensors
            for kind in ("with", "without")
        )
        for group in one:
            assert sorted(one[group]) == sorted(other[group])
            differing = [name for name in one[group] if one[group][name].tobytes() != other[group][name].tobytes()]
            assert not differing, (index, group, differing)


@pytest.fixture(scope="module")
def order(words, tmp_path_factory):
    """What rank 0 does in each step: (plain data parallelism, stage 2, stage 3)."""
    place = tmp_path_factory.mktemp("order")
    layouts = {"data": {"parallel__data": 2}, "stage 2": STAGE_2, "stage 3": STAGE_3}
    cases = [
        words(place / name.replace(" ", ""), **{**SMALL, "model": "deep", "parallel__name": "hybrid", **layout})
        for name, layout in layouts.items()
    ]
    return dict(zip(layouts, on_ranks(2, f"{HELPERS}:events", cases)[0], strict=True))


@pytest.mark.multiproc
@pytest.mark.slow
def test_gradients_go_before_the_backward_pass_ends(order):
    """From the second step on, in the last of the micro-batches alone."""
    first, second, *_ = order["data"]
    assert "all_reduce" not in first[: last(first, "pass done")]
    before, between = second.index("pass done"), last(second, "pass done")
    assert "all_reduce" not in second[:before]
    assert second[before:between].count("all_reduce") >= 3


@pytest.mark.multiproc
@pytest.mark.slow
def test_sharded_gradients_go_in_every_micro_batch(order):
    for step in order["stage 2"]:
        first, second = (i for i, event in enumerate(step) if event == "pass done")
        assert step[:first].count("reduce_scatter") >= 3
        assert step[first:second].count("reduce_scatter") >= 3


@pytest.mark.multiproc
@pytest.mark.slow
def test_the_next_layer_is_gathered_while_one_computes(order):
    """Forward: before it has computed. Backward: before the layer before it gets gradients, which ends its own computation."""
    for step in order["stage 3"][1:]:
        rest = step[: step.index("pass done")]
        for layer in range(3):
            assert rest.index(f"gather {layer + 1}") < rest.index(f"computed {layer}"), step
            back = rest[rest.index(f"gradients of {layer + 1}") :]
            assert back.index(f"gather {layer}") < back.index(f"gradients of {layer}"), step
        # each layer but the first and, for its gradients, the last once
        assert sum(event.startswith("gather") for event in rest) == 6


@pytest.mark.multiproc
def test_gradients_that_come_later_than_usual_are_in_the_sum():
    found = on_ranks(2, f"{HELPERS}:late")
    assert [one[1:] for one in found[0]] == [one[1:] for one in found[1]]
    # each parameter has gradient 10 rank + index + 1 in the first pass of a step, one more in the second
    usual = [[12.0] * 3, [14.0] * 3]
    late = [[12.0 + 12.0] * 3, [14.0 + 13.0] * 3]
    assert [one[1:] for one in found[0]] == [usual, usual, late, [[12.0] * 3, [12.0] * 3]]
    assert [one[0] for one in found[0]][:3] == [0, 2, 2]
    assert [one[0] for one in found[1]][:3] == [0, 2, 2]


def last(events, event):
    return len(events) - 1 - events[::-1].index(event)
