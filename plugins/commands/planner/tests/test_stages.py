"""What processes of a divided run hold: parts add up, and every axis leaves less of what it shares."""

from dataclasses import replace

import pytest
from erniecore_planner.activations import Work, activations
from erniecore_planner.jobs import Job, total_parameters
from erniecore_planner.layout_memory import RING, parameter_counts
from erniecore_planner.memory import States, tensors_peak
from erniecore_planner.stages import holds, layers_by_stage, shape_of

from erniecore.api.model import DecoderShape, LayerShape
from erniecore.api.planning import ParallelLayout

DENSE = DecoderShape(256, 4096, True, (LayerShape(8, 2, 64, 768),) * 4)
MOE = replace(DENSE, layers=(LayerShape(8, 2, 64, 256, experts=16, selected=4, expert=128),) * 4)
WORK = Work(tokens=2048, length=2048)


def job(shape=DENSE, rows=4):
    return Job(shape, 2048, 1, rows, element=4, weight=4.0, gradient=4.0, moments=8.0, master=0.0)


def of(degrees, shape=DENSE, stage=0, parts=((0, 4),), work=WORK):
    return holds(job(shape), work, degrees, parts, stage)


def test_alone_it_is_what_the_plan_of_one_process_says():
    parameters = total_parameters(DENSE)
    states = States(12 * parameters, 4 * parameters, 4 * 4096 * 256)
    assert of(ParallelLayout()).peak_memory == pytest.approx(
        tensors_peak(states, activations(DENSE, WORK), accumulation=4)
    )


def test_parts_of_a_pipeline_are_dealt_in_turns():
    assert layers_by_stage((1, 1, 1, 2), 5, 2) == [[(0, 1), (2, 3)], [(1, 2), (3, 5)]]
    assert layers_by_stage((), 4, 1) == [[(0, 4)]]


def test_stages_have_the_models_layers_and_the_tied_table_twice():
    degrees = ParallelLayout(pipeline=2)
    first, last = of(degrees, parts=((0, 3),)), of(degrees, stage=1, parts=((3, 4),))
    assert first.parameters + last.parameters == total_parameters(DENSE) + 4096 * 256
    assert (first.in_flight, last.in_flight) == (2, 1)
    assert first.layers + last.layers == (0, 1, 2, 3)
    assert first.activations < 6 * last.activations  # three layers, twice; one and the loss


@pytest.mark.parametrize("shape", [DENSE, MOE])
def test_tensor_ranks_hold_about_half(shape):
    whole, half = of(ParallelLayout(), shape), of(ParallelLayout(tensor=2), shape)
    assert half.parameters < 0.51 * whole.parameters
    assert half.activations < 0.85 * whole.activations
    assert of(ParallelLayout(tensor=2, sequence=True), shape).activations < half.activations


def test_tables_may_have_other_state_than_matrices():
    """As with Muon: one moment of a matrix, two of embedding and head."""
    muon, table = replace(job(), moments=4.0, table_moments=8.0), 4096 * 256
    for shards in (1, 2):
        layout = ParallelLayout(pipeline=2, sharding=shards)
        first, last = (holds(muon, WORK, layout, parts, i) for i, parts in enumerate([((0, 3),), ((3, 4),)]))
        for stage in (first, last):
            assert stage.optimizer == (4 * stage.parameters + 4 * table) / shards
    assert holds(muon, WORK, ParallelLayout(), ((0, 4),), 0).optimizer == 4 * total_parameters(DENSE) + 4 * table


def test_each_level_of_sharding_shares_more():
    parameter_counts = [of(ParallelLayout(sharding=2, sharding_stage=level)) for level in (1, 2, 3)]
    assert parameter_counts[0].optimizer == of(ParallelLayout()).optimizer / 2
    assert parameter_counts[1].gradients == parameter_counts[0].gradients / 2
    assert parameter_counts[2].weights == parameter_counts[0].weights / 2
    assert parameter_counts[2].peak_memory < parameter_counts[1].peak_memory < parameter_counts[0].peak_memory


def test_context_ranks_keep_half_of_all_but_keys_and_values():
    whole, half = of(ParallelLayout()), of(ParallelLayout(context=2))
    keys = 4 * 2 * 4 * 1024 * 2 * 64
    assert half.activations == pytest.approx(whole.activations / 2 + keys)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_ring_of_context_ranks_keeps_its_own_keys_and_values(ranks):
    """Whatever the length of the row is: of its own positions, and in the layer at work those of a few ranks."""
    whole = of(ParallelLayout())
    own = of(ParallelLayout(context=ranks, context_attention="ring"))
    assert own.activations == pytest.approx(whole.activations / ranks)
    assert own.activations < of(ParallelLayout(context=ranks)).activations
    one = 2 * 4 * 2048 // ranks * 2 * 64
    assert own.workspace == of(ParallelLayout(context=ranks)).workspace + RING * one


def test_layers_that_are_gathered_ahead_and_embedding_and_head_need_memory():
    """One more layer each; or that at work and the whole table."""
    layer, table = parameter_counts(job(), 0, 4, 1, 1).largest, 4096 * 256
    message = of(ParallelLayout(sharding=2, sharding_stage=2)).buffers
    for ahead in (0, 1, 9):
        found = of(ParallelLayout(sharding=2, sharding_stage=3, prefetch=ahead))
        assert found.buffers - message == 4 * (layer + max(ahead * layer, table))


def test_holes_of_the_heap_are_not_counted_for_parameters_that_are_gathered():
    """They are returned to the system; activations leave holes."""
    layer = parameter_counts(job(), 0, 4, 1, 1).largest
    ten, nine = (of(ParallelLayout(sharding=2, sharding_stage=3, prefetch=ahead)) for ahead in (10, 9))
    assert ten.process_memory - nine.process_memory == 4 * layer


def test_replicas_have_messages():
    assert of(ParallelLayout(data=2)).buffers == 2 * 4 * total_parameters(DENSE)
    assert of(ParallelLayout(data=2)).peak_memory > of(ParallelLayout()).peak_memory - 1


def test_the_shape_of_a_stage_is_that_of_its_layers():
    own = shape_of(MOE, ((0, 1), (2, 4)), 2, 2)
    assert (len(own.layers), own.vocab, own.layers[0].experts, own.layers[0].heads) == (3, 2048, 4, 4)
