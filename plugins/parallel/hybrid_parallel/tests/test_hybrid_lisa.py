"""LISA on several ranks: the same layers and numbers as in one process, bit-equal resume, and another layout
after a resume."""

from pathlib import Path

import pytest
from erniecore_checkpoint.manifest import read_manifest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_ckpt.rewriting import tensor_hashes
from erniecore_conformance.processes import on_ranks

pytestmark = pytest.mark.slow

pytest.importorskip("erniecore_lisa")

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
LISA = {
    "optimizer__name": "lisa",
    "optimizer__layers": 1,
    "optimizer__period": 2,
    # above the rounding of gradients: AdamW makes whole steps of what is rounding where they cancel
    "optimizer__epsilon": 1e-5,
    "train__learning_rate": 1e-3,
    "train__schedule": "constant",
    "checkpoint__export": "false",
}
SHARDING = {"parallel__sharding": 2, "train__accumulation": 1}
#: layout -> (model, settings)
LAYOUTS = {
    "data": ("deep", {"parallel__data": 2, "train__accumulation": 1}),
    "stage1": ("deep", SHARDING),
    "tensor": ("deep", {"parallel__tensor": 2, "train__accumulation": 2}),
    "pipeline": ("deep", {"parallel__pipeline": 2, "train__accumulation": 2}),
    "experts": ("deep-moe", {"parallel__data": 2, "parallel__expert": 2, "train__accumulation": 1}),
}


@pytest.fixture(scope="module")
def place(words, tmp_path_factory):
    """``one-MODEL``, a directory per layout; ``LAYOUT-twice``: stopped within a period; ``again``: another
    layout goes on."""
    import erniecore

    place = tmp_path_factory.mktemp("lisa")

    def make(name, layout, steps=3):
        model, parallel = LAYOUTS[layout]
        return words(place / name, model, **LISA, parallel__name="hybrid", **parallel, train__max_steps=steps)

    for model in ("deep", "deep-moe"):
        alone = words(place / f"one-{model}", model, **LISA, train__accumulation=2, train__max_steps=3)
        erniecore.run(overrides=alone, console="none")
    todo = [make(layout, layout) for layout in LAYOUTS]
    todo += [make("stage1-twice", "stage1", steps) for steps in (1, 3)]
    todo += [make("again", "stage1", 2), make("again", "tensor")]
    on_ranks(2, f"{HELPERS}:runs", todo)
    return place


@pytest.mark.multiproc
@pytest.mark.parametrize("layout", [*LAYOUTS, "again"])
def test_layout_equals_one_process(place, compared, layout):
    model = LAYOUTS["stage1" if layout == "again" else layout][0]
    found = compared(place / f"one-{model}", place / layout)
    assert found.weights("model") <= 2e-5
    assert found.weights("optim") <= 2e-4


@pytest.mark.multiproc
def test_a_run_continues_bit_for_bit_and_keeps_state_of_one_layer(place):
    one, two = (place / name / "ckpt" / "step-00000003" for name in ("stage1", "stage1-twice"))
    assert tensor_hashes(read_manifest(one)) == tensor_hashes(read_manifest(two))
    names = {name for name in load_checkpoint(one).tensors["optim"] if ".layers." in name}
    assert len({name.split(".layers.")[1].partition(".")[0] for name in names}) == 1
