"""What is kept, what is removed, and what is never touched."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from erniecore_checkpoint.leftovers import clear_leftovers, hidden_name
from erniecore_checkpoint.manifest import Manifest, list_checkpoints, read_manifest
from erniecore_checkpoint.reader import newest_verified
from erniecore_checkpoint.retention import prune
from erniecore_checkpoint.save import save_checkpoint

MODEL = "model-00001-of-00001.safetensors"


def save(root, step, keep=100):
    return save_checkpoint(root, step, {"model": {"w": np.full(3, step, np.float32)}}, {}, keep=keep)


def steps(root):
    return [int(path.name[5:]) for path in list_checkpoints(root)]


@pytest.mark.parametrize(
    ("keep", "left"), [(3, [4, 5, 6]), (5, [2, 3, 4, 5, 6]), (2, [5, 6]), (1, [5, 6]), (0, [5, 6])]
)
def test_the_newest_stay_and_never_fewer_than_two(tmp_path, keep, left):
    for step in range(1, 7):
        save(tmp_path, step)
    prune(tmp_path, keep)
    assert steps(tmp_path) == left


def test_saving_prunes(tmp_path):
    for step in range(1, 7):
        save(tmp_path, step, keep=3)
    assert steps(tmp_path) == [4, 5, 6]


def test_what_was_removed_is_returned(tmp_path):
    for step in range(1, 5):
        save(tmp_path, step)
    assert prune(tmp_path, 2) == [tmp_path / "step-00000002", tmp_path / "step-00000001"]


def test_a_damaged_checkpoint_does_not_count_as_kept(tmp_path):
    for step in range(1, 5):
        save(tmp_path, step)
    (tmp_path / "step-00000004" / MODEL).write_bytes(b"")
    prune(tmp_path, 2)
    assert steps(tmp_path) == [2, 3, 4]


def test_foreign_directories_and_files_stay(tmp_path):
    for step in range(1, 5):
        save(tmp_path, step)
    (tmp_path / "step-00000000").mkdir()
    (tmp_path / "step-00000000" / "mine.txt").write_text("keep me")
    (tmp_path / "notes.txt").write_text("keep me")
    prune(tmp_path, 2)
    assert steps(tmp_path) == [0, 3, 4]
    assert (tmp_path / "notes.txt").exists()


def test_a_checkpoint_with_a_foreign_file_inside_stays(tmp_path):
    for step in range(1, 5):
        save(tmp_path, step)
    (tmp_path / "step-00000001" / "why-this-one-is-good.md").write_text("")
    prune(tmp_path, 2)
    assert steps(tmp_path) == [1, 3, 4]


def test_a_checkpoint_whose_manifest_is_damaged_is_not_removed(tmp_path):
    for step in range(1, 5):
        save(tmp_path, step)
    (tmp_path / "step-00000001" / "MANIFEST.json").write_text("{")
    prune(tmp_path, 2)
    assert steps(tmp_path) == [1, 3, 4]


def test_a_link_to_a_checkpoint_elsewhere_is_not_followed(tmp_path):
    for step in range(1, 5):
        save(tmp_path / "ckpt", step)
    shutil.move(tmp_path / "ckpt" / "step-00000001", tmp_path / "treasure")
    (tmp_path / "ckpt" / "step-00000001").symlink_to(tmp_path / "treasure")
    prune(tmp_path / "ckpt", 2)
    assert (tmp_path / "treasure" / MODEL).exists()


class TestLeftovers:
    """Directories that dead processes left behind."""

    def make(self, root, role, pid=2**22 + 1, host=None):
        path = save(root / "elsewhere", 9)
        owner = {"pid": pid, "host": host or os.uname().nodename}
        manifest = Manifest(step=9, status="writing", owner=owner)
        (path / "MANIFEST.json").write_bytes(manifest.to_bytes())
        return path.rename(root / hidden_name(role, 9))

    @pytest.mark.parametrize("role", ["tmp", "trash"])
    def test_a_dead_save_is_removed_by_the_next(self, tmp_path, role):
        leftover = self.make(tmp_path, role)
        save(tmp_path, 10)
        assert not leftover.exists()

    def test_a_living_save_is_left_alone(self, tmp_path):
        leftover = self.make(tmp_path, "tmp", pid=os.getppid())
        save(tmp_path, 10)
        assert leftover.exists()

    def test_a_recent_save_of_another_host_is_left_alone(self, tmp_path):
        leftover = self.make(tmp_path, "tmp", host="another-host")
        save(tmp_path, 10)
        assert leftover.exists()

    def test_an_old_save_of_another_host_is_removed(self, tmp_path):
        leftover = self.make(tmp_path, "tmp", host="another-host")
        os.utime(leftover, (0, 0))
        save(tmp_path, 10)
        assert not leftover.exists()

    @pytest.mark.parametrize("content", [b"", b'{"kind": "ern'])
    def test_a_save_that_died_writing_its_first_manifest_is_removed(self, tmp_path, content):
        leftover = tmp_path / hidden_name("tmp", 3)
        leftover.mkdir()
        (leftover / "MANIFEST.json").write_bytes(content)
        assert clear_leftovers(tmp_path) == [leftover]

    def test_an_empty_temporary_directory_is_removed(self, tmp_path):
        (tmp_path / hidden_name("tmp", 3)).mkdir()
        assert len(clear_leftovers(tmp_path)) == 1

    def test_a_foreign_directory_with_such_a_name_stays(self, tmp_path):
        foreign = tmp_path / hidden_name("tmp", 3)
        foreign.mkdir()
        (foreign / "data.csv").write_text("1,2")
        assert clear_leftovers(tmp_path) == []
        assert (foreign / "data.csv").exists()

    @pytest.mark.parametrize("name", [".tmp-step-3", ".tmp-step-00000003", ".tmp-step-00000003-xyz", ".cache"])
    def test_other_hidden_directories_stay(self, tmp_path, name):
        (tmp_path / name).mkdir()
        assert clear_leftovers(tmp_path) == []

    def test_a_checkpoint_moved_aside_by_a_killed_save_is_still_found(self, tmp_path):
        path = save(tmp_path, 4)
        aside = path.rename(tmp_path / hidden_name("old", 4))
        assert newest_verified(tmp_path) == (aside, [])

    def test_a_checkpoint_moved_aside_by_a_killed_save_is_put_back(self, tmp_path):
        path = save(tmp_path, 4)
        path.rename(tmp_path / hidden_name("old", 4))
        save(tmp_path, 5)
        assert read_manifest(path).step == 4
        assert steps(tmp_path) == [4, 5]

    def test_a_checkpoint_moved_aside_and_replaced_is_removed(self, tmp_path):
        aside = save(tmp_path, 4).rename(tmp_path / hidden_name("old", 4))
        save(tmp_path, 4)
        save(tmp_path, 5)
        assert not aside.exists()
