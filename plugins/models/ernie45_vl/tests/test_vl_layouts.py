"""Rows with images on two ranks: every layout gives the losses and weights of one process, also where a rank has texts alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_conformance.processes import on_ranks

import erniecore

HELPERS = Path(__file__).with_name("layout_runs.py")
ALL = "model.train=text,vision,resampler,vision_experts"
DATA = ["parallel.data=2", "train.accumulation=1"]
SHARDING = ["parallel.sharding=2", "train.accumulation=1"]
LAYOUTS = {
    "data": DATA,
    "stage1": SHARDING,
    "stage2": [*SHARDING, "parallel.sharding_stage=2"],
    "stage3": [*SHARDING, "parallel.sharding_stage=3"],
    "tensor": ["parallel.tensor=2"],
    "expert": [*DATA, "parallel.expert=2"],
    "stage3-expert": [*SHARDING, "parallel.sharding_stage=3", "parallel.expert=2"],
}
REFUSED = {
    "pipeline": ["parallel.pipeline=2"],
    "context": ["parallel.context=2"],
    "sequence": ["parallel.tensor=2", "parallel.sequence=true"],
}


#: (what is trained, layout)
RUNS = [*(("text", name) for name in LAYOUTS), *(("all", name) for name in ("data", "stage3", "tensor", "expert"))]


def words(home, out, *more):
    return [
        f"model.path={home / 'base'}",
        "method=sft",
        f"data.train={home / 'rows.jsonl'}",
        "data.max_seq_len=96",
        "data.max_drop=0.05",
        "data.packing=none",
        "train.batch_size=1",
        "train.accumulation=2",
        "train.learning_rate=0.0005",
        "train.max_steps=4",
        "log.report=false",
        "checkpoint.export=false",
        f"run.out={out}",
        *more,
    ]


@pytest.fixture(scope="module")
def alone(home, tmp_path_factory):
    place = tmp_path_factory.mktemp("alone")
    for name, parts in (("text", []), ("all", [ALL])):
        erniecore.run(None, words(home, place / name, *parts), console="none")
    return place


@pytest.fixture(scope="module")
def together(home, tmp_path_factory):
    """(directory of the runs, name -> error): all of them in one launch."""
    place = tmp_path_factory.mktemp("together")
    cases = {
        f"{name}-{run}": words(home, place / f"{name}-{run}", "parallel.name=hybrid", *layout, *parts)
        for name, layout in {**LAYOUTS, **REFUSED}.items()
        for run, parts in (("text", []), ("all", [ALL]))
        if (run, name) in RUNS or (name in REFUSED and run == "text")
    }
    (errors, _) = on_ranks(2, f"{HELPERS}:runs", list(cases.values()), limit=900.0)
    return place, dict(zip(cases, errors, strict=True))


def read(out):
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    return losses, load_checkpoint(out / "ckpt" / "step-00000004").tensors["model"]


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(("run", "layout"), RUNS)
def test_layouts_give_the_numbers_of_one_process(alone, together, layout, run):
    place, errors = together
    assert errors[f"{layout}-{run}"] == ""
    (losses, weights), (expected, one) = read(place / f"{layout}-{run}"), read(alone / run)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert weights.entries.keys() == one.entries.keys()
    assert max(float(np.abs(weights[name] - one[name]).max()) for name in one) <= 1e-5


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_layouts_that_cut_sequences_or_layers_are_refused_before_training(together, name):
    place, errors = together
    assert f"parallel.{name}" in errors[f"{name}-text"]
    assert "rows with images train on" in errors[f"{name}-text"]
    assert not (place / f"{name}-text" / "ckpt").exists()
