"""Layouts over several accelerators: the search against trying everything, and what must hold for any model."""

from dataclasses import replace

import pytest
from erniecore_planner.clusters import GB, Cluster, Machines, read_cluster, uniform
from erniecore_planner.jobs import Job, total_parameters
from erniecore_planner.layout_memory import parameter_counts, stage_memory
from erniecore_planner.layout_search import assess, every_layout, search, sizes_of
from erniecore_planner.layout_time import all_gather, all_reduce, stages, step_time
from erniecore_planner.layouts import Options, choices

from erniecore.api import UsageError
from erniecore.api.command import layout_spaces
from erniecore.api.model import DecoderShape, LayerShape
from erniecore.api.planning import ParallelLayout

DENSE = LayerShape(heads=8, kv_heads=4, head_dim=64, mlp=2048)
SPARSE = LayerShape(heads=8, kv_heads=4, head_dim=64, mlp=512, experts=16, selected=4, expert=512)
SHAPE = DecoderShape(hidden=512, vocab=32768, tied=False, layers=(DENSE, *(SPARSE,) * 7))
SPACE = dict(layout_spaces(SHAPE))["hybrid"]
GPU = Machines(1, 4, "accelerator", 6 * GB, 50e12, bandwidth=1e12, link=100e9, host_memory=64 * GB)


def job(**changes):
    return Job(**{"shape": SHAPE, "length": 8192, "micro": 1, "rows": 16, **changes})


def brute_force(wanted, cluster, sizes):
    return [
        assess(wanted, part, variant, option)
        for part, chosen in every_layout(wanted, SPACE, cluster, sizes)
        for variant, option in choices(SPACE, chosen, offload=True)
    ]


@pytest.mark.parametrize("memory", [2, 4, 6, 12, 40])
@pytest.mark.parametrize("changes", [{}, {"adapter": 10_000_000, "weight": 0.55}, {"copies": 1, "forward": 1}])
def test_search_equals_brute_force(memory, changes):
    cluster = uniform(8, replace(GPU, memory=memory * GB))
    wanted, sizes = job(**changes), sizes_of(cluster)
    every = [layout for layout in brute_force(wanted, cluster, sizes) if layout.fits]
    found = search(wanted, SPACE, cluster)
    if not every:
        assert found.fastest is None
        return
    assert found.fastest.time.total == min(layout.time.total for layout in every)
    assert found.cheapest.price == min(layout.price for layout in every)
    assert found.lowest_memory.accelerators == min(layout.accelerators for layout in every)


def test_what_is_too_large_is_told_where_nothing_fits():
    found = search(job(), SPACE, uniform(4, replace(GPU, memory=1 * GB)))
    assert found.fastest is None
    assert 0 < len(found.too_large) <= 3
    assert all(not layout.fits for layout in found.too_large)


@pytest.mark.parametrize("degrees", [{}, {"tensor": 4}, {"pipeline": 3, "tensor": 2}, {"pipeline": 8}])
def test_the_parts_of_all_ranks_are_the_model(degrees):
    chosen = ParallelLayout(**degrees)
    wanted, chosen = job(), replace(chosen, split=SPACE.split(chosen))
    small = sum(2 * 512 + (512 * 16 + 16 if layer.experts else 0) for layer in SHAPE.layers) + 512
    total = 0.0
    for first, end in stages(wanted, chosen):
        part = parameter_counts(wanted, first, end, chosen.tensor, chosen.expert)
        total += (part.dense + part.experts) * chosen.tensor
    assert total == pytest.approx(total_parameters(SHAPE) + (chosen.tensor - 1) * small)


def memory_of(chosen=None, option=None, **changes):
    return stage_memory(job(**changes), chosen or ParallelLayout(), option or Options(), 0, len(SHAPE.layers), index=0)


def test_more_sharding_is_less_memory():
    sizes = [memory_of(ParallelLayout(sharding=4, sharding_stage=stage)).total for stage in (1, 2, 3)]
    assert memory_of(ParallelLayout(data=4)).total > sizes[0] > sizes[1] > sizes[2]


def test_a_rollout_of_stage_3_has_the_whole_parameters():
    """Where they need more than gradients and activations, which are not there meanwhile."""
    deep = replace(SHAPE, vocab=1024, layers=(SPARSE,) * 60)

    def memory(layout, **changes):
        wanted = job(shape=deep, length=32, rows=4, gradient=0.1, **changes)
        return stage_memory(wanted, layout, Options(), 0, len(deep.layers), index=0)

    layout = ParallelLayout(sharding=8, sharding_stage=3)
    trained, generating = memory(layout), memory(layout, generates=True)
    counts = parameter_counts(job(shape=deep), 0, len(deep.layers), 1, 1)
    passing = trained.gradients + trained.activations + trained.workspace + trained.buffers
    more = 2 * (counts.dense + counts.experts) - trained.weights - passing
    assert more > 0
    assert generating.buffers - trained.buffers == pytest.approx(more, abs=8)
    assert replace(generating, buffers=0, reserve=0) == replace(trained, buffers=0, reserve=0)
    for other in (ParallelLayout(sharding=8, sharding_stage=2), ParallelLayout(data=8)):
        assert memory(other, generates=True) == memory(other)
    long = job(generates=True), job()
    assert len({stage_memory(one, layout, Options(), 0, 8, index=0) for one in long}) == 1  # activations are more


def test_recomputation_and_offload_are_less_memory():
    totals = [memory_of(option=Options(recompute=kind)).total for kind in ("none", "attention", "full")]
    assert totals[0] > totals[1] > totals[2]
    away = memory_of(option=Options(offload=True))
    assert (away.optimizer, away.host) == (0, memory_of().optimizer)


def test_one_rank_has_what_the_plan_of_one_process_says():
    """States are those of ``engine.plan``: 2 + 2 + 12 bytes per parameter."""
    made = memory_of()
    assert made.weights + made.gradients + made.optimizer == 16 * total_parameters(SHAPE)


def test_early_stages_keep_more_micro_batches():
    chosen = ParallelLayout(pipeline=4)
    first, last = (stage_memory(job(), chosen, Options(), 2, 4, index=index).activations for index in (0, 3))
    assert first == 4 * last


def test_a_pipeline_of_few_micro_batches_waits():
    wanted, cluster = job(rows=4), uniform(4, GPU)
    chosen = ParallelLayout(pipeline=4, split=SPACE.split(ParallelLayout(pipeline=4)))
    few = step_time(wanted, cluster, chosen, Options())
    many = step_time(job(rows=64), cluster, chosen, Options())
    assert few.bubble / few.total > 0.35
    assert many.bubble / many.total < 0.1


def test_collectives_by_hand():
    assert all_reduce(8e9, 4, (1e-3, 1e9)) == pytest.approx(6e-3 + 12.0)
    assert all_gather(8e9, 4, (1e-3, 1e9)) == pytest.approx(3e-3 + 6.0)
    assert all_reduce(8e9, 1, (1e-3, 1e9)) == 0.0


def test_tensor_ranks_divide_heads_and_widths():
    assert {layout.tensor for n in range(1, 9) for layout in SPACE.layouts(n)} == {1, 2, 4}


def test_slower_accelerators_get_fewer_layers():
    cluster = Cluster((replace(GPU, accelerators=1, flops=100e12), replace(GPU, accelerators=1, flops=50e12)))
    chosen = ParallelLayout(pipeline=2)
    [slower] = {layout.split for _, layout in every_layout(job(), SPACE, cluster, [2]) if layout.pipeline == 2}
    assert slower[0] > SPACE.split(chosen)[0]
    assert SPACE.overrides(replace(chosen, split=slower)) == (
        "parallel.pipeline=2",
        f"parallel.split=[{slower[0]},{slower[1]}]",
    )


def test_the_smallest_accelerator_decides_in_a_mixed_cluster():
    big, small = replace(GPU, accelerators=1, memory=80 * GB), replace(GPU, accelerators=1, memory=1 * GB)
    assert search(job(), SPACE, Cluster((big, big)), [2]).fastest is not None
    assert search(job(), SPACE, Cluster((big, small)), [2]).fastest is None


def test_cluster_file():
    rows = [
        {"count": 2, "accelerators": 8, "accelerator": "A100", "memory": 80, "tflops": 312, "link": 300, "price": 2},
        {"count": 1, "accelerators": 4, "accelerator": "L40S", "memory": 48, "measured_tflops": 200},
    ]
    cluster = read_cluster({"machines": rows, "network": 12.5}, "c.yaml")
    assert (cluster.size, cluster.per_machine, cluster.price) == (20, 4, 36.0)
    assert cluster.machines[0].flops < 312e12
    assert cluster.machines[1].flops == 200e12
    assert cluster.slowest(0, 20).memory == 48 * GB
    assert cluster.first(16).size == 16
    assert cluster.first(18).machines[-1].accelerators == 2


@pytest.mark.parametrize(
    ("row", "args"),
    [
        ({"memori": 80}, "memory"),
        ({"memory": -1}, "above 0"),
        ({"accelerators": True}, "above 0"),
        ({"tflops": None}, "above 0"),
    ],
)
def test_wrong_cluster_files_are_explained(row, args):
    good = {"count": 2, "accelerators": 8, "accelerator": "A100", "memory": 80, "tflops": 312}
    with pytest.raises(UsageError) as caught:
        read_cluster({"machines": [{**good, **row}]}, "c.yaml")
    assert "machines[0]" in str(caught.value)
    assert args in str(caught.value)


@pytest.mark.parametrize(
    "document", [None, [], {"machines": 3}, {"machines": []}, {"machines": [3]}, {"machines": [{}]}]
)
def test_what_is_no_cluster_file_is_refused(document):
    with pytest.raises(UsageError):
        read_cluster(document, "c.yaml")


def test_what_is_never_trained_is_in_memory_alone():
    layer = replace(SPARSE, idle=512)
    shape = replace(SHAPE, layers=(DENSE, *(layer,) * 7), beside=1_000_000)
    chosen, option = ParallelLayout(), Options()
    plain, found = (
        stage_memory(job(shape=s), chosen, option, 0, 8, index=0, on_accelerator=False) for s in (SHAPE, shape)
    )
    more = 2 * (7 * 3 * 512 * 512 * 16 + 1_000_000)
    assert found.weights - plain.weights == more
    assert replace(found, weights=plain.weights) == plain
