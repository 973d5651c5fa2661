"""APOLLO over sharded matrices: the numbers of one process, the low-rank state whole on every rank, bit-equal resume, another
layout after a resume."""

from pathlib import Path

import pytest
from erniecore_checkpoint.manifest import read_manifest
from erniecore_ckpt.rewriting import tensor_hashes
from erniecore_conformance.processes import on_ranks

pytestmark = pytest.mark.slow

pytest.importorskip("erniecore_apollo")

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
APOLLO = {
    "optimizer__name": "apollo",
    "optimizer__rank": 4,
    "optimizer__period": 2,
    "train__learning_rate": 1e-3,
    "train__schedule": "constant",
    "checkpoint__export": "false",
}
SHARDING = {"parallel__sharding": 2, "train__accumulation": 1}
#: layout -> (model, settings)
LAYOUTS = {
    "data": ("untied", {"parallel__data": 2, "train__accumulation": 1}),
    "stage1": ("untied", SHARDING),
    "stage2": ("untied", {**SHARDING, "parallel__sharding_stage": 2}),
    "stage3": ("untied", {**SHARDING, "parallel__sharding_stage": 3}),
    "tensor": ("untied", {"parallel__tensor": 2, "train__accumulation": 2}),
    "pipeline": ("untied", {"parallel__pipeline": 2, "train__accumulation": 2}),
    "moe-stage1": ("moe", SHARDING),
}


@pytest.fixture(scope="module")
def place(words, tmp_path_factory):
    """``one-MODEL``, a directory per layout; ``LAYOUT-twice``: two steps, then the third; ``again``: that on another layout."""
    import erniecore

    place = tmp_path_factory.mktemp("apollo")

    def make(name, layout, steps=3):
        model, parallel = LAYOUTS[layout]
        return words(place / name, model, **APOLLO, parallel__name="hybrid", **parallel, train__max_steps=steps)

    for model in ("untied", "moe"):
        alone = words(place / f"one-{model}", model, **APOLLO, train__accumulation=2)
        erniecore.run(overrides=alone, console="none")
    todo = [make(layout, layout) for layout in LAYOUTS]
    todo += [make(f"{layout}-twice", layout, steps) for layout in ("stage2", "tensor") for steps in (2, 3)]
    todo += [make("again", "stage1", 2), make("again", "tensor")]
    on_ranks(2, f"{HELPERS}:runs", todo)
    return place


@pytest.mark.multiproc
@pytest.mark.parametrize("layout", [*LAYOUTS, "again"])
def test_layout_equals_one_process(place, compared, layout):
    model = LAYOUTS["stage1" if layout == "again" else layout][0]
    found = compared(place / f"one-{model}", place / layout)
    assert found.weights("model") <= 2e-5
    assert found.weights("optim") <= 2e-3  # norms of updates, of some ten


@pytest.mark.multiproc
@pytest.mark.parametrize("layout", ["stage2", "tensor"])
def test_a_run_continues_bit_for_bit(place, layout):
    one, two = (read_manifest(place / name / "ckpt" / "step-00000003") for name in (layout, f"{layout}-twice"))
    assert tensor_hashes(one) == tensor_hashes(two)
