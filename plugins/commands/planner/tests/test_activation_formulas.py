"""Activations and workspace as formulas say; that autograd keeps just as much is tested with the models."""

from dataclasses import replace

import pytest
from erniecore_planner.activations import Work, activations, cache_bytes, logits_bytes, loss_chunk_of
from hypothesis import given
from hypothesis import strategies as st

from erniecore.types.shape import DecoderShape, LayerShape

DENSE = LayerShape(heads=8, kv_heads=2, head_dim=16, mlp=96)
ROUTED = LayerShape(heads=8, kv_heads=2, head_dim=16, mlp=32, experts=4, selected=2, expert=24)
SHAPE = DecoderShape(hidden=64, vocab=1000, tied=True, layers=(DENSE, ROUTED, ROUTED))
WORK = Work(tokens=200, length=100)


def test_full_recomputation_keeps_the_input_of_each_layer():
    made = activations(SHAPE, replace(WORK, recompute="full"))
    assert made.residual == 3 * 200 * 64 * 4 + 4 * 200 * 16
    assert (made.attention, made.mlp, made.router, made.experts) == (0, 0, 0, 0)


def test_full_recomputation_works_on_one_whole_layer():
    none, full = activations(SHAPE, WORK), activations(SHAPE, replace(WORK, recompute="full"))
    assert full.workspace > none.workspace


def test_attention_recomputation_keeps_the_rest():
    none, half = activations(SHAPE, WORK), activations(SHAPE, replace(WORK, recompute="attention"))
    assert half.attention == 0
    assert (half.mlp, half.experts) == (none.mlp, none.experts)
    # the input of the attention is saved, which is recomputed otherwise
    assert half.residual == none.residual + 3 * 200 * 64 * 4


def test_core_attention_recomputation_saves_nothing_here():
    none, core = activations(SHAPE, WORK), activations(SHAPE, replace(WORK, recompute="core-attention"))
    assert core == replace(none, residual=none.residual + 3 * 200 * 64 * 4)


@given(st.integers(1, 50), st.sampled_from(["none", "full", "attention"]))
def test_what_is_kept_grows_with_the_tokens(times, recompute):
    one = activations(SHAPE, replace(WORK, recompute=recompute))
    many = activations(SHAPE, replace(WORK, tokens=200 * times, recompute=recompute))
    assert many.saved == times * one.saved


def test_low_precision_halves_what_is_not_kept_in_float32():
    high, low = activations(SHAPE, WORK), activations(SHAPE, replace(WORK, element=2))
    assert low.mlp == high.mlp // 2
    assert low.experts == high.experts // 2
    assert low.residual == high.residual + 3 * 200 * 64 * 4
    assert low.attention > high.attention


def test_updates_cost_their_ranks():
    assert activations(SHAPE, replace(WORK, ranks=48)).adapter == 200 * 48 * 4


def test_updates_of_experts_keep_sorted_rows():
    plain, adapted = activations(SHAPE, WORK), activations(SHAPE, replace(WORK, adapted_experts=True))
    assert plain.experts == 2 * 4 * 400 * 2 * 24
    assert adapted.experts == 2 * 4 * 400 * (2 * 64 + 3 * 24)


@pytest.mark.parametrize(
    ("vocab", "tokens", "chunk", "piece"),
    [(1000, 200, 1024, 200), (1000, 5000, 1024, 1024), (1000, 10_000, 0, 4194), (103_424, 5000, 0, 256)],
)
def test_pieces_of_the_loss(vocab, tokens, chunk, piece):
    assert loss_chunk_of(vocab, tokens, chunk) == piece


def test_a_large_vocabulary_in_one_piece_is_the_first_surprise():
    shape = replace(SHAPE, vocab=103_424)
    whole = logits_bytes(shape, Work(tokens=8192, length=8192, loss_chunk=8192, head_trained=False))
    assert whole == 8192 * 103_424 * 4
    assert logits_bytes(shape, Work(tokens=8192, length=8192, head_trained=False)) == whole // 8


def test_a_frozen_head_has_no_gradient():
    trained, frozen = (logits_bytes(SHAPE, replace(WORK, head_trained=t)) for t in (True, False))
    assert trained - frozen == 1000 * 64 * 4


def test_a_kernel_that_adds_while_it_multiplies_needs_one_gradient_of_the_head():
    pieces = Work(tokens=8192, length=8192, loss_chunk=1024)
    apart, added = (logits_bytes(SHAPE, replace(pieces, apart=a)) for a in (True, False))
    assert apart - added == SHAPE.vocab * SHAPE.hidden * 4


def test_prediction_layers_count():
    more = activations(replace(SHAPE, mtp_layers=(DENSE,)), WORK)
    assert more.attention == activations(SHAPE, WORK).attention * 4 // 3
    assert more.loss == 2 * activations(SHAPE, WORK).loss


def test_cache_of_the_21b_model():
    layer = LayerShape(heads=20, kv_heads=4, head_dim=128, mlp=12288)
    shape = DecoderShape(2560, 103_424, True, (layer,) * 28)
    # 28 layers x 2 x 4 heads x 128 x 2 bytes = 56 KiB for a position
    assert cache_bytes(shape, rows=1, length=1, element=2) == 57_344
    assert cache_bytes(shape, rows=3, length=131_072, element=2) == 3 * 131_072 * 57_344


def test_masks_grow_with_the_tokens_and_not_with_long_rows():
    # 200 queries, 4 query heads to a key head, half of the keys of a short row, four batches, float32
    assert activations(SHAPE, WORK).masks == 200 * 4 * 50 * 4 * 4
    assert activations(SHAPE, Work(tokens=8192, length=8192)).masks == 8192 * 4 * 200 * 4 * 4
