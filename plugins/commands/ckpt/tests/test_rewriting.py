"""The same checkpoint in other files: tensors, state and provenance stay, also where it replaces itself."""

from __future__ import annotations

import numpy as np
import pytest
from erniecore_checkpoint.manifest import read_manifest
from erniecore_checkpoint.reader import load_checkpoint, newest_verified
from erniecore_checkpoint.save import save_checkpoint
from erniecore_ckpt.rewriting import rewrite, tensor_hashes

from erniecore.errors import CheckpointError


@pytest.fixture
def saved(tmp_path):
    tensors = {"model": {f"w{i}": np.full(100, i, np.float32) for i in range(6)}, "optim": {"m": np.ones(3, np.uint16)}}
    save_checkpoint(tmp_path / "ckpt", 5, tensors, {}, keep=9)
    return save_checkpoint(
        tmp_path / "ckpt", 7, tensors, {"x": [1]}, parent_step=5, config_hash="abc", max_shard_bytes=400
    )


@pytest.mark.parametrize(("size", "files"), [(10**9, 1), (900, 3)])
@pytest.mark.parametrize("place", ["elsewhere", "ckpt"])
def test_everything_but_the_files_stays(tmp_path, saved, size, files, place):
    before = read_manifest(saved)
    assert len(before.groups["model"]) == 6
    path = rewrite(saved, tmp_path / place, size)
    after = read_manifest(path)
    assert len(after.groups["model"]) == files
    assert tensor_hashes(after) == tensor_hashes(before)
    facts = (after.step, after.parent_step, after.config_hash, after.versions)
    assert facts == (before.step, before.parent_step, before.config_hash, before.versions)
    assert load_checkpoint(path).state == {"x": [1]}
    assert newest_verified(tmp_path / "ckpt") == (tmp_path / "ckpt" / "step-00000007", [])
    assert (tmp_path / "ckpt" / "step-00000005").is_dir()


def test_a_damaged_checkpoint_is_not_rewritten(tmp_path, saved):
    file = next(saved.glob("model-*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        rewrite(saved, tmp_path / "elsewhere", 10**9)
    assert not (tmp_path / "elsewhere").exists()
