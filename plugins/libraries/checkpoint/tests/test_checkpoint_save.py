"""Saving and loading checkpoints on a healthy disk."""

from __future__ import annotations

import json

import numpy as np
import pytest
from erniecore_checkpoint.manifest import list_checkpoints, read_manifest
from erniecore_checkpoint.reader import load_checkpoint, newest_verified
from erniecore_checkpoint.save import save_checkpoint
from erniecore_checkpoint.verify import verify_checkpoint
from erniecore_errors import CheckpointError

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, 2, 3], np.uint16)}


def save(root, step, **kwargs):
    return save_checkpoint(root, step, {"model": MODEL, "optim": {"w.m": MODEL["w"] * step}}, {"lr": 0.1}, **kwargs)


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path):
    checkpoint = load_checkpoint(save(tmp_path / "ckpt", 7))
    assert checkpoint.step == 7
    assert checkpoint.state == {"lr": 0.1}
    assert {k: v.tobytes() for k, v in checkpoint.tensors["model"].items()} == {
        k: v.tobytes() for k, v in MODEL.items()
    }
    np.testing.assert_array_equal(checkpoint.tensors["optim"]["w.m"], MODEL["w"] * 7)


def test_the_directory_has_the_documented_names(tmp_path):
    path = save(tmp_path / "ckpt", 120)
    assert path == tmp_path / "ckpt" / "step-00000120"
    assert sorted(p.name for p in path.iterdir()) == [
        "MANIFEST.json",
        "model-00001-of-00001.safetensors",
        "optim-00001-of-00001.safetensors",
        "state.json",
    ]
    assert json.loads((tmp_path / "ckpt" / "latest.json").read_text()) == {"step": 120, "path": "step-00000120"}


def test_nothing_temporary_stays(tmp_path):
    save(tmp_path, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest.json", "step-00000001"]


def test_the_manifest_says_what_was_saved(tmp_path):
    manifest = read_manifest(save(tmp_path, 3, parent_step=1, config_hash="abc", versions={"erniecore": "0.1.0"}))
    assert (manifest.step, manifest.parent_step, manifest.config_hash) == (3, 1, "abc")
    assert manifest.versions == {"erniecore": "0.1.0"}
    assert manifest.status == "complete"
    tensors = manifest.files["model-00001-of-00001.safetensors"].tensors
    assert {name: (t.dtype, t.shape) for name, t in tensors.items()} == {"w": ("F32", (2, 3)), "b": ("BF16", (3,))}


def test_large_groups_are_sharded(tmp_path):
    tensors = {f"t{i}": np.full(100, i, np.float32) for i in range(5)}
    path = save_checkpoint(tmp_path, 1, {"model": tensors}, {}, max_shard_bytes=900)
    assert len(list(path.glob("model-*-of-00003.safetensors"))) == 3
    loaded = load_checkpoint(path).tensors["model"]
    assert {name: float(array[0]) for name, array in loaded.items()} == {f"t{i}": float(i) for i in range(5)}


def test_an_empty_group_is_kept(tmp_path):
    path = save_checkpoint(tmp_path, 0, {"optim": {}}, {})
    assert dict(load_checkpoint(path).tensors["optim"]) == {}


def test_saving_a_step_again_replaces_it(tmp_path):
    save_checkpoint(tmp_path, 4, {"model": MODEL}, {"try": 1})
    path = save_checkpoint(tmp_path, 4, {"model": MODEL}, {"try": 2})
    assert load_checkpoint(path).state == {"try": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest.json", "step-00000004"]


def test_a_foreign_directory_in_the_way_is_not_touched(tmp_path):
    (tmp_path / "step-00000004").mkdir()
    (tmp_path / "step-00000004" / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="in the way"):
        save(tmp_path, 4)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000004"]
    assert (tmp_path / "step-00000004" / "thesis.txt").read_text() == "mine"


def test_floats_of_the_state_come_back_exactly(tmp_path):
    state = {"x": 0.1 + 0.2, "big": 2**70, "list": [1, None, True, "ü"], "inf": float("inf")}
    path = save_checkpoint(tmp_path, 1, {}, state)
    assert load_checkpoint(path).state == state


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {3: 1}}, "state.a"),
        ({"a": [1, (2,)]}, r"state.a\[1\]"),
        ({"a": np.float32(1)}, "state.a"),
        ({"a": MODEL["w"]}, "state.a"),
    ],
)
def test_a_state_that_json_would_change_is_refused(tmp_path, state, where):
    with pytest.raises(CheckpointError, match=f"^{where}: the state"):
        save_checkpoint(tmp_path / "ckpt", 1, {}, state)
    assert not (tmp_path / "ckpt").exists()


def test_a_tensor_that_cannot_be_stored_is_named_with_its_group(tmp_path):
    with pytest.raises(CheckpointError, match="optim: w: this dtype"):
        save_checkpoint(tmp_path, 1, {"optim": {"w": np.zeros(1, np.complex64)}}, {})


@pytest.mark.parametrize("group", ["", "../x", "a b"])
def test_a_group_that_is_no_file_name_is_refused(tmp_path, group):
    with pytest.raises(ValueError, match="tensor group"):
        save_checkpoint(tmp_path, 1, {group: {}}, {})


def test_checkpoints_are_listed_oldest_first(tmp_path):
    for step in (30, 2, 100):
        save(tmp_path, step, keep=5)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000030", "step-00000100"]


def test_other_names_are_not_checkpoints(tmp_path):
    for name in ("step-1", "step-00000001.bak", "step-0000000a", "best"):
        (tmp_path / name).mkdir()
    assert list_checkpoints(tmp_path) == []


def test_there_is_nothing_newest_in_an_empty_place(tmp_path):
    assert newest_verified(tmp_path / "nowhere") == (None, [])


def test_a_directory_without_a_manifest_is_not_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="this is not a checkpoint"):
        load_checkpoint(tmp_path)


def test_a_file_of_tensors_that_no_manifest_lists_is_found(tmp_path):
    path = save(tmp_path, 1)
    (path / "extra-00001-of-00001.safetensors").write_bytes(b"")
    assert [str(f) for f in verify_checkpoint(path)] == [
        "extra-00001-of-00001.safetensors: this file is not in the manifest"
    ]


class TestRequire:
    """Checkpoint.require: exactly the tensors of this run."""

    expected = {"w": ((2, 3), "F32"), "b": ((3,), "BF16")}

    def test_the_right_tensors_are_returned(self, tmp_path):
        tensors = load_checkpoint(save(tmp_path, 1)).require("model", self.expected)
        np.testing.assert_array_equal(tensors["w"], MODEL["w"])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"w2": ((1,), "F32")}, "w2 is missing"),
            ({"w": ((3, 2), "F32")}, r"w has shape \[2, 3\], expected \[3, 2\]"),
            ({"w": ((2, 3), "BF16")}, "w has dtype F32, expected BF16"),
        ],
    )
    def test_what_differs_is_named(self, tmp_path, changes, message):
        checkpoint = load_checkpoint(save(tmp_path, 1))
        with pytest.raises(CheckpointError, match=message):
            checkpoint.require("model", {**self.expected, **changes})

    def test_an_unexpected_tensor_is_named(self, tmp_path):
        with pytest.raises(CheckpointError, match="b is not in the model of this run"):
            load_checkpoint(save(tmp_path, 1)).require("model", {"w": ((2, 3), "F32")})

    def test_a_missing_tensor_gets_the_nearest_name(self, tmp_path):
        path = save_checkpoint(tmp_path, 1, {"model": {"norm.weight": np.zeros(1, np.float32)}}, {})
        with pytest.raises(CheckpointError, match=r"norm\.weigth is missing \(near: norm\.weight\)"):
            load_checkpoint(path).require("model", {"norm.weigth": ((1,), "")})

    def test_a_missing_group_is_named(self, tmp_path):
        with pytest.raises(CheckpointError, match="has no 'ema' tensors"):
            load_checkpoint(save(tmp_path, 1)).require("ema", {})
