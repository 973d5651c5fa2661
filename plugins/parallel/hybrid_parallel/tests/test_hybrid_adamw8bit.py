"""Moments of 8 bits on several processes: near one process, whose blocks begin elsewhere; a run continues bit for bit, and on
another layout."""

from pathlib import Path

import pytest
from erniecore_checkpoint.manifest import read_manifest
from erniecore_ckpt.rewriting import tensor_hashes
from erniecore_conformance.processes import on_ranks

pytestmark = pytest.mark.slow

pytest.importorskip("erniecore_adamw8bit")

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
OPTIMIZER = {
    "optimizer__name": "adamw8bit",
    "optimizer__min_size": 0,
    "optimizer__embeddings": "true",
    "optimizer__block_size": 32,
    "train__schedule": "constant",
    "checkpoint__export": "false",
}
SHARDING = {"parallel__sharding": 2, "train__accumulation": 1}
LAYOUTS = {
    "data": {"parallel__data": 2, "train__accumulation": 1},
    "stage1": SHARDING,
    "stage2": {**SHARDING, "parallel__sharding_stage": 2},
    "stage3": {**SHARDING, "parallel__sharding_stage": 3},
    "tensor": {"parallel__tensor": 2, "train__accumulation": 2},
}


@pytest.fixture(scope="module")
def place(words, tmp_path_factory):
    """``one``, a directory per layout; ``LAYOUT-twice``: two steps, then the third; ``again``: that on another layout."""
    import erniecore

    place = tmp_path_factory.mktemp("adamw8bit")

    def make(name, layout, steps=3):
        hybrid = {"parallel__name": "hybrid", **LAYOUTS[layout]}
        return words(place / name, "untied", **OPTIMIZER, **hybrid, train__max_steps=steps)

    erniecore.run(overrides=words(place / "one", "untied", **OPTIMIZER, train__accumulation=2), console="none")
    todo = [make(layout, layout) for layout in LAYOUTS]
    todo += [make(f"{layout}-twice", layout, steps) for layout in ("stage1", "stage3", "tensor") for steps in (2, 3)]
    todo += [make("again", "stage1", 2), make("again", "tensor")]
    on_ranks(2, f"{HELPERS}:runs", todo)
    return place


@pytest.mark.multiproc
@pytest.mark.parametrize("layout", [*LAYOUTS, "again"])
def test_layout_is_near_one_process(place, compared, layout):
    """Weights move by 1.5e-3 in three steps."""
    found = compared(place / "one", place / layout)
    assert found.of("step", "loss") <= 1e-3
    assert found.weights("model") <= 3e-4


@pytest.mark.multiproc
def test_data_parallel_ranks_have_the_bytes_of_one_process(place, compared):
    """But for the order of sums."""
    assert compared(place / "one", place / "data").weights("model") <= 3e-5


@pytest.mark.multiproc
@pytest.mark.parametrize("layout", ["stage1", "stage3", "tensor"])
def test_a_run_continues_bit_for_bit(place, layout):
    one, two = (read_manifest(place / name / "ckpt" / "step-00000003") for name in (layout, f"{layout}-twice"))
    assert tensor_hashes(one) == tensor_hashes(two)
