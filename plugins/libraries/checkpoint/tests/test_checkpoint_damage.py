"""Every changed, missing or cut-off byte of a checkpoint is found, and the run goes on from an older one."""

from __future__ import annotations

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint, newest_verified
from erniecore_checkpoint.save import save_checkpoint
from erniecore_checkpoint.verify import verify_checkpoint
from erniecore_errors import CheckpointError

MODEL = "model-00001-of-00001.safetensors"


@pytest.fixture
def saved(tmp_path):
    tensors = {"model": {"w": np.arange(6, dtype=np.float32), "b": np.array([1, 2, 3], np.uint16)}}
    return save_checkpoint(tmp_path / "ckpt", 5, tensors, {"epoch": 1, "rows": [3, 4]})


def flip(path, offset, bit):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", [MODEL, "state.json", "MANIFEST.json"])
def test_a_flipped_bit_in_any_byte_is_found_in_its_file(saved, name):
    path = saved / name
    original = path.read_bytes()
    missed = []
    for offset in range(len(original)):
        flip(path, offset, offset % 8)
        if [f.file for f in verify_checkpoint(saved)] != [name]:
            missed.append(offset)
        path.write_bytes(original)
    assert missed == []
    assert verify_checkpoint(saved) == []


@pytest.mark.parametrize(("tensor", "first", "size"), [("w", -30, 24), ("b", -6, 6)])
def test_a_flipped_bit_in_a_tensor_is_found_in_that_tensor(saved, tensor, first, size):
    original = (saved / MODEL).read_bytes()
    for offset in range(first, first + size):
        flip(saved / MODEL, offset, offset % 8)
        assert [(f.file, f.tensor) for f in verify_checkpoint(saved)] == [(MODEL, tensor)]
        (saved / MODEL).write_bytes(original)


def test_damage_in_two_tensors_names_both(saved):
    flip(saved / MODEL, -1, 0)
    flip(saved / MODEL, -30, 0)
    assert {f.tensor for f in verify_checkpoint(saved)} == {"w", "b"}


def test_damage_outside_all_tensors_says_so(saved):
    flip(saved / MODEL, 20, 0)
    assert [str(f) for f in verify_checkpoint(saved)] == [f"{MODEL}: sha256 differs: its header has changed"]


@pytest.mark.parametrize("name", [MODEL, "state.json", "MANIFEST.json"])
def test_a_file_cut_anywhere_is_found(saved, name):
    path = saved / name
    original = path.read_bytes()
    for length in range(0, len(original), 7):
        path.write_bytes(original[:length])
        assert [f.file for f in verify_checkpoint(saved)] == [name]
        path.write_bytes(original)


def test_a_truncated_file_names_the_first_tensor_that_is_cut(saved):
    path = saved / MODEL
    path.write_bytes(path.read_bytes()[:-7])
    (finding,) = verify_checkpoint(saved)
    assert (finding.tensor, finding.message[:21]) == ("w", "the file is truncated")


def test_a_file_that_grew_is_found(saved):
    with (saved / MODEL).open("ab") as file:
        file.write(b"x")
    assert [str(f) for f in verify_checkpoint(saved)] == [f"{MODEL}: the file is too long by 1 byte"]


@pytest.mark.parametrize("name", [MODEL, "state.json"])
def test_a_missing_file_is_found(saved, name):
    (saved / name).unlink()
    assert [f.file for f in verify_checkpoint(saved)] == [name]


def test_loading_a_damaged_checkpoint_names_file_tensor_and_remedy(saved):
    flip(saved / MODEL, -1, 3)
    with pytest.raises(CheckpointError, match=f"{MODEL}: b: the checkpoint is damaged: sha256 differs") as caught:
        load_checkpoint(saved)
    assert caught.value.code == "ERN-K002"
    assert "run.resume=auto" in caught.value.fix


def test_damage_after_a_successful_check_is_found_again(saved):
    load_checkpoint(saved)
    flip(saved / MODEL, -1, 3)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(saved)


def test_an_unfinished_save_is_no_checkpoint(saved):
    from dataclasses import replace

    from erniecore_checkpoint.manifest import read_manifest

    (saved / "MANIFEST.json").write_bytes(replace(read_manifest(saved), status="writing").to_bytes())
    with pytest.raises(CheckpointError, match="the save was not finished"):
        load_checkpoint(saved, verify=False)


def test_a_manifest_cannot_point_outside_its_directory(saved):
    from dataclasses import replace

    from erniecore_checkpoint.manifest import read_manifest

    manifest = read_manifest(saved)
    files = {"../../etc/passwd": manifest.files["state.json"]}
    (saved / "MANIFEST.json").write_bytes(replace(manifest, files=files).to_bytes())
    with pytest.raises(CheckpointError, match="the manifest is damaged"):
        load_checkpoint(saved)


def test_the_newest_whole_checkpoint_is_used_and_the_damaged_one_reported(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"model": {"w": np.ones(4, np.float32)}}, {}, keep=5)
    flip(tmp_path / "step-00000003" / MODEL, -1, 0)
    (tmp_path / "step-00000002" / "state.json").unlink()
    path, notes = newest_verified(tmp_path)
    assert path == tmp_path / "step-00000001"
    assert notes == [
        f"step-00000003 is damaged and passed over: {MODEL}: w: sha256 differs: its bytes have changed",
        "step-00000002 is damaged and passed over: state.json: the file is missing",
        "step-00000001 is whole and used instead",
    ]


def test_nothing_is_noted_when_the_newest_is_whole(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {}, {})
    assert newest_verified(tmp_path) == (tmp_path / "step-00000002", [])


def test_when_all_are_damaged_there_is_none(tmp_path):
    save_checkpoint(tmp_path, 1, {}, {})
    flip(tmp_path / "step-00000001" / "state.json", 0, 0)
    path, notes = newest_verified(tmp_path)
    assert path is None
    assert len(notes) == 1


def test_latest_json_is_not_believed(tmp_path):
    save_checkpoint(tmp_path, 1, {}, {})
    (tmp_path / "latest.json").write_text('{"step": 99, "path": "step-00000099"}')
    assert newest_verified(tmp_path)[0] == tmp_path / "step-00000001"
