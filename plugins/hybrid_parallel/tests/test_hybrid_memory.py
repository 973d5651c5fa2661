"""Bytes per rank, measured by Paddle's allocator, fall as the stages promise."""

from pathlib import Path

import pytest

from erniecore.testing.processes import on_ranks

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
