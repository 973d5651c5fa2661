"""Checkpoints that several ranks write at the same time: who writes what, and what a rank needs to hold for it."""

import json
from pathlib import Path

import pytest
from erniecore_checkpoint.manifest import read_manifest
from erniecore_conformance.processes import on_ranks

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]
HELPERS = Path(__file__).with_name("hybrid_helpers.py")


def test_ranks_that_hold_other_names_save_and_load_together(tmp_path):
    assert on_ranks(2, f"{HELPERS}:partial_names", str(tmp_path / "ckpt")) == [[], []]


def test_both_ranks_write_half_of_the_bytes(words, tmp_path):
    keys = {"parallel__name": "hybrid", "parallel__data": 2, "train__max_steps": 2, "checkpoint__every": 1}
    on_ranks(2, f"{HELPERS}:runs", [words(tmp_path / "run", **keys)])
    (event,) = [
        e
        for e in map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
        if e["event"] == "checkpoint" and e["step"] == 1
    ]
    manifest = read_manifest(tmp_path / "run" / "ckpt" / "step-00000001")
    for group in ("model", "optim"):
        assert len(manifest.groups[group]) == 2
    sums = [0, 0]
    for names in manifest.groups.values():
        for rank, name in enumerate(names):
            sums[rank] += sum(t.end - t.begin for t in manifest.files[name].tensors.values())
    assert sum(sums) == event["bytes"]
    assert max(sums) <= 0.52 * sum(sums)
