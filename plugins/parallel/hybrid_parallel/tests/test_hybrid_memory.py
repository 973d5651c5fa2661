"""Bytes per rank, measured by Paddle's allocator, fall as the stages promise."""

from pathlib import Path

import pytest
from erniecore_conformance.processes import on_ranks

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
LAYOUTS = {
    "data": {"parallel__data": 2},
    "stage1": {"parallel__sharding": 2},
    "stage2": {"parallel__sharding": 2, "parallel__sharding_stage": 2},
    "stage3": {"parallel__sharding": 2, "parallel__sharding_stage": 3},
    "tensor": {"parallel__tensor": 2},
}


@pytest.fixture(scope="module")
def measured(words, hybrid_home, tmp_path_factory):
    """Layout -> (parameters, bytes when built, bytes of gradients) of rank 0."""
    place = tmp_path_factory.mktemp("memory")
    more = ["model.size=tiny", f"model.tokenizer={hybrid_home / 'tok'}"]
    cases = []
    for name, layout in LAYOUTS.items():
        own = words(place / name, **{"parallel__name": "hybrid", **layout})
        cases.append([word for word in own if not word.startswith("model.path=")] + more)
    return dict(zip(LAYOUTS, on_ranks(2, f"{HELPERS}:memory", cases)[0], strict=True))


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "built", "gradients"),
    [("data", 12, 4), ("stage1", 8, 4), ("stage2", 8, 2), ("stage3", 6, 2), ("tensor", 6, 2)],
)
def test_bytes_per_parameter(measured, layout, built, gradients):
    """Weights 4 and moments 8 bytes, gradients 4: each halved where two ranks share it (±10 %)."""
    parameters, found, more = measured[layout]
    assert found / parameters == pytest.approx(built, rel=0.1)
    assert more / parameters == pytest.approx(gradients, rel=0.1)


#: ranks that share positions, with all else as without: of whole layers, and of what recomputation keeps
SHARED = {
    "alone": {"parallel__data": 2},
    "context": {"parallel__context": 2},
    "ring": {"parallel__context": 2, "parallel__context_attention": "ring"},
    "tensor": {"parallel__tensor": 2, "train__recompute": "full"},
    "sequence": {"parallel__tensor": 2, "parallel__sequence": "true", "train__recompute": "full"},
}


@pytest.fixture(scope="module")
def kept(words, hybrid_home, tmp_path_factory):
    """Layout -> bytes per position that the forward pass of one long row keeps, in a model of many narrow layers."""
    place = tmp_path_factory.mktemp("activations")
    row = {"data__packing": "greedy", "data__max_seq_len": 800, "train__batch_size": 1}
    more = ["model.size=tiny", f"model.tokenizer={hybrid_home / 'tok'}", "model.architecture.num_hidden_layers=12"]
    cases = []
    for name, layout in SHARED.items():
        own = words(place / name, **{**row, "parallel__name": "hybrid", **layout})
        cases.append([word for word in own if not word.startswith("model.path=")] + more)
    found = on_ranks(2, f"{HELPERS}:activations", cases)[0]
    return {name: size / positions for name, (positions, size) in zip(SHARED, found, strict=True)}


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(("shared", "without"), [("context", "alone"), ("sequence", "tensor")])
def test_activations_fall_where_positions_are_shared(kept, shared, without):
    """Two ranks: half of what the layers keep; whole rows remain at the end of the model, and keys and values."""
    print(kept)
    assert kept[shared] <= 0.7 * kept[without]


@pytest.mark.multiproc
@pytest.mark.slow
def test_a_ring_keeps_no_keys_and_values_of_other_ranks(kept):
    """Half of everything is left, but for whole rows at the end of the model."""
    assert kept["ring"] <= 0.55 * kept["alone"]
    assert kept["ring"] < 0.9 * kept["context"]
