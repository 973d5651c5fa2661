"""Counted operations, and the peak from its parts."""

from dataclasses import replace

import pytest
from erniecore_planner.activations import Activations
from erniecore_planner.flops import step_flops
from erniecore_planner.memory import CPU_HEAP, CPU_PROCESS, States, cpu_process, tensors_peak, transient

from erniecore.types.shape import DecoderShape, LayerShape

LAYER = LayerShape(heads=4, kv_heads=2, head_dim=8, mlp=48)
SHAPE = DecoderShape(hidden=32, vocab=100, tied=True, layers=(LAYER,) * 2)
#: parameters in products: q and o 2 x 32 x 32, k and v 2 x 32 x 16, the MLP 3 x 32 x 48; and the head
PER_LAYER, HEAD = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48, 100 * 32
ACTIVE = 2 * PER_LAYER + HEAD
SCORES = 2 * 4 * 50 * 32


def flops(shape=SHAPE, active=ACTIVE, **more):
    return step_flops(shape, active=active, length=100, **more)


def test_forward_is_two_per_parameter_and_the_scores_of_half_the_keys():
    assert flops().forward == 2 * ACTIVE + SCORES


def test_training_everything_is_three_forward_passes():
    assert flops().total == 3 * (2 * ACTIVE + SCORES)


def test_an_embedding_that_is_not_the_head_is_a_lookup():
    assert flops(replace(SHAPE, tied=False), ACTIVE + HEAD).forward == flops().forward


def test_frozen_weights_need_no_gradient():
    made = flops(adapter=500)
    assert made.backward == made.forward + 1000


def test_full_recomputation_runs_the_layers_again():
    assert flops(recompute="full").again == 4 * PER_LAYER + SCORES


def test_attention_recomputation_runs_its_projections_and_scores_again():
    assert flops(recompute="attention").again == 2 * 2 * (2 * 32 * 32 + 2 * 32 * 16) + SCORES
    assert flops(recompute="core-attention").again == SCORES


def test_a_reference_is_one_more_forward_pass():
    assert flops(reference=True).total == flops().total + flops().forward


ACTS = Activations(residual=10, attention=20, mlp=30, router=0, experts=0, adapter=0, loss=40, logits=50, workspace=5)
STATES = States(resident=1000, gradients=60, largest=8)


@pytest.mark.parametrize(
    ("states", "acts", "accumulation", "moment"),
    [
        (STATES, ACTS, 1, 150),
        (STATES, ACTS, 4, 210),
        (replace(STATES, gradients=500), ACTS, 1, 508),
        (replace(STATES, gradients=500), replace(ACTS, workspace=70), 1, 570),
        (STATES, replace(ACTS, workspace=130), 1, 190),
    ],
    ids=["the loss", "and gradients of earlier micro-batches", "the update", "the backward pass", "a wide layer"],
)
def test_the_highest_moment_counts(states, acts, accumulation, moment):
    assert transient(states, acts, accumulation=accumulation) == moment


def test_the_peak_holds_all_states():
    assert tensors_peak(STATES, ACTS, accumulation=1) == 1000 + 150


def test_holes_of_the_heap_are_left_by_activations_and_not_by_gradients():
    assert cpu_process(STATES, ACTS, accumulation=1) == CPU_PROCESS + 1000 + round(CPU_HEAP * 150)
    assert cpu_process(replace(STATES, gradients=500), ACTS, accumulation=1) == CPU_PROCESS + 1000 + 508
