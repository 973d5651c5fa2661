"""Rows with images on two ranks: every layout gives the losses and weights of one process; tower and projector learn too."""

import json
from pathlib import Path

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_conformance.processes import on_ranks

import erniecore

HELPERS = Path(__file__).with_name("ocr_layout_runs.py")
LAYOUTS = {
    "data": ["parallel.data=2", "train.accumulation=1"],
    "stage3": ["parallel.sharding=2", "parallel.sharding_stage=3", "train.accumulation=1"],
    "tensor": ["parallel.tensor=2"],
    "sequence": ["parallel.tensor=2", "parallel.sequence=true"],
    "context": ["parallel.context=2"],
    "pipeline": ["parallel.pipeline=2"],
    "chunks": ["parallel.pipeline=2", "parallel.chunks=2"],
}


def settings(home, out, *more):
    return [
        f"model.path={home / 'base'}",
        "method=sft",
        f"data.train={home / 'rows.jsonl'}",
        "data.max_seq_len=96",
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


def read(out):
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    return losses, load_checkpoint(max((out / "ckpt").glob("step-*"))).tensors["model"]


@pytest.fixture(scope="module")
def together(home, tmp_path_factory):
    """The directory of all runs, in one launch."""
    place = tmp_path_factory.mktemp("together")
    erniecore.run(None, settings(home, place / "alone"), console="none")
    cases = [settings(home, place / name, "parallel.name=hybrid", *more) for name, more in LAYOUTS.items()]
    on_ranks(2, f"{HELPERS}:runs", cases, limit=900.0)
    return place


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_give_the_numbers_of_one_process(together, name):
    (losses, weights), (wanted, one) = read(together / name), read(together / "alone")
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    assert weights.entries.keys() == one.entries.keys()
    assert any(entry.startswith("vision_model.") for entry in one)
    assert max(float(np.abs(weights[entry] - one[entry]).max()) for entry in one) <= 1e-5
