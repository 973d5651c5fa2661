"""Muon over sharded matrices and sharded momentum: the numbers of one process, on every axis, and on another one after a
resume. The update of a matrix needs all of it, which a wrong gathering would show at once."""

import json
from pathlib import Path

import pytest
from erniecore_checkpoint.manifest import read_manifest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_ckpt.rewriting import tensor_hashes
from erniecore_conformance.processes import on_ranks

from erniecore.cli.app import main

pytestmark = pytest.mark.slow

pytest.importorskip("erniecore_muon")

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
MUON = {
    "optimizer__name": "muon",
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
    "sequence": ("untied", {"parallel__tensor": 2, "parallel__sequence": "true", "train__accumulation": 2}),
    "pipeline": ("untied", {"parallel__pipeline": 2, "train__accumulation": 2}),
    "moe-stage1": ("moe", SHARDING),
    "moe-stage2": ("moe", {**SHARDING, "parallel__sharding_stage": 2}),
    "moe-stage3": ("moe", {**SHARDING, "parallel__sharding_stage": 3}),
    "moe-tensor": ("moe", {"parallel__tensor": 2, "train__accumulation": 2}),
    "moe-expert": ("moe", {"parallel__data": 2, "parallel__expert": 2, "train__accumulation": 1}),
}
#: layout that makes two steps -> layout of the third
CONTINUED = {"stage1": "tensor", "tensor": "stage2", "stage3": "stage1", "moe-expert": "moe-stage1"}


@pytest.fixture(scope="module")
def place(words, tmp_path_factory):
    """``one-MODEL``: three steps of one process; a directory per layout; ``A-again``: two steps on A, the third on its
    successor; ``A-twice``: two steps on A, and the third there too."""
    import erniecore

    place = tmp_path_factory.mktemp("muon")

    def make(name, layout, steps=3):
        model, parallel = LAYOUTS[layout]
        hybrid = {"parallel__name": "hybrid", **parallel}
        return words(place / name, model, **MUON, **hybrid, train__max_steps=steps)

    for model in ("untied", "moe"):
        alone = words(place / f"one-{model}", model, **MUON, train__accumulation=2)
        erniecore.run(overrides=alone, console="none")
    todo = [make(layout, layout) for layout in LAYOUTS]
    todo += [make(f"{first}-again", first, 2) for first in CONTINUED]
    todo += [make(f"{first}-again", then) for first, then in CONTINUED.items()]
    todo += [make(f"{layout}-twice", layout, steps) for layout in ("stage1", "tensor") for steps in (2, 3)]
    on_ranks(2, f"{HELPERS}:runs", todo)
    return place


@pytest.mark.multiproc
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_equals_one_process(place, compared, layout):
    found = compared(place / f"one-{LAYOUTS[layout][0]}", place / layout)
    found.assert_close()
    assert found.weights("optim") <= 1e-5


@pytest.mark.multiproc
@pytest.mark.parametrize("layout", CONTINUED)
def test_a_run_continues_on_another_layout(place, compared, layout):
    found = compared(place / f"one-{LAYOUTS[layout][0]}", place / f"{layout}-again")
    assert max(found.weights(group) for group in ("model", "optim")) <= 1e-5


@pytest.mark.multiproc
@pytest.mark.parametrize("layout", ["stage1", "tensor"])
def test_a_resumed_run_is_bit_equal(place, layout):
    hashes = [
        tensor_hashes(read_manifest(place / name / "ckpt" / "step-00000003")) for name in (layout, f"{layout}-twice")
    ]
    assert hashes[0] == hashes[1]


@pytest.mark.multiproc
def test_the_plan_has_the_bytes_of_the_checkpoint(place, words, capsys):
    arguments = words(place / "dry", "moe", **MUON, train__accumulation=2)
    assert main(["run", "--dry-run", "--json", *arguments]) == 0
    plan = json.loads(capsys.readouterr().out)
    kept = load_checkpoint(place / "one-moe" / "ckpt" / "step-00000003").tensors["optim"]
    assert plan["optimizer_state"] == sum(kept[name].nbytes for name in kept)


@pytest.mark.multiproc
def test_matrices_have_momentum_and_the_rest_two_moments(place):
    names = {name.partition(":")[2] for name in tensor_hashes(read_manifest(place / "one-moe/ckpt/step-00000003"))}
    momentum = {name.removesuffix(".momentum") for name in names if name.endswith(".momentum")}
    assert {name.rpartition(".layers.0.")[2] for name in momentum if ".layers.0.self_attn.q" in name} == {
        "self_attn.q_proj.weight"
    }
    assert any(".mlp.experts." in name for name in momentum)
    assert not any("embed" in name or "norm" in name or name.endswith("mlp.gate.weight") for name in momentum)
    assert not any(f"{name}.first" in names for name in momentum)


@pytest.mark.multiproc
def test_the_factors_of_an_adapter_are_matrices_on_every_layout(words, tmp_path, compared):
    import erniecore

    lora = {**MUON, "adapter__name": "lora", "adapter__rank": 4}
    for model in ("untied", "moe"):
        alone = words(tmp_path / model, model, **lora, train__accumulation=2)
        erniecore.run(overrides=alone, console="none")
    made = {
        f"{model}-{name}": (model, LAYOUTS[name][1]) for model in ("untied", "moe") for name in ("tensor", "stage1")
    }
    todo = [
        words(tmp_path / name, model, **lora, parallel__name="hybrid", **layout)
        for name, (model, layout) in made.items()
    ]
    on_ranks(2, f"{HELPERS}:runs", todo)
    for name, (model, _) in made.items():
        found = compared(tmp_path / model, tmp_path / name)
        found.assert_close()
        assert found.weights("optim") <= 1e-5
    names = tensor_hashes(read_manifest(tmp_path / "untied" / "ckpt" / "step-00000003"))
    assert all(name.endswith(".momentum") for name in names if name.startswith("optim:"))
