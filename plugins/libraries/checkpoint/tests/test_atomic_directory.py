"""Directories that appear whole or not at all."""

from __future__ import annotations

import os

import pytest
from erniecore_checkpoint.directories import (
    MODEL_MANIFEST,
    atomic_directory,
    claimed,
    verify_directory,
    write_directory_manifest,
)
from erniecore_errors import CheckpointError


def write(target, text):
    with atomic_directory(target) as directory:
        (directory / "a.txt").write_text(text)
        (directory / "sub").mkdir()
        (directory / "sub" / "b.txt").write_text(text)
        write_directory_manifest(directory, {"who": "test"})


def names(directory):
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def test_the_directory_appears_with_its_manifest(tmp_path):
    write(tmp_path / "deep" / "out", "x")
    assert names(tmp_path / "deep" / "out") == ["a.txt", MODEL_MANIFEST, "sub/b.txt"]
    assert verify_directory(tmp_path / "deep" / "out") == []


def test_an_empty_directory_is_filled(tmp_path):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "x")
    assert (tmp_path / "out" / "a.txt").read_text() == "x"


def test_our_own_directory_is_replaced(tmp_path):
    write(tmp_path / "out", "old")
    write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "a.txt").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_foreign_directory_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="files that erniecore did not write; nothing was changed"):
        write(tmp_path, "x")
    assert names(tmp_path) == ["thesis.txt"]


def test_our_directory_with_a_foreign_file_in_it_is_refused(tmp_path):
    write(tmp_path / "out", "old")
    (tmp_path / "out" / "sub" / "notes.md").write_text("mine")
    with pytest.raises(CheckpointError, match=r"besides the model .*\(got sub/notes\.md\)"):
        write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "a.txt").read_text() == "old"


def test_a_file_of_that_name_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(CheckpointError, match="not a directory"):
        write(tmp_path / "out", "x")


def test_an_error_leaves_the_old_directory_and_nothing_else(tmp_path):
    write(tmp_path / "out", "old")
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / "out") as directory:  # noqa: PT012
        (directory / "a.txt").write_text("half")
        raise RuntimeError
    assert (tmp_path / "out" / "a.txt").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_failed_rename_puts_the_old_directory_back(tmp_path, monkeypatch):
    write(tmp_path / "out", "old")
    real, calls = os.rename, []

    def rename(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(CheckpointError, match="input/output error while writing a model directory; the target is unch"):
        write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "a.txt").read_text() == "old"


def test_what_a_killed_writer_left_is_removed(tmp_path):
    dead = tmp_path / ".tmp-out-0123abcd"
    dead.mkdir()
    (dead / ".erniecore-writing").write_text(str(os.getppid()))  # numbers are given again: nobody holds the lock
    write(tmp_path / "out", "x")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_another_writer_still_writes_stays(tmp_path):
    other = tmp_path / ".tmp-out-0123abcd"
    other.mkdir()
    with claimed(other):
        write(tmp_path / "out", "x")
        with pytest.raises(CheckpointError, match="another process writes"), claimed(other):
            pass
        assert (other / ".erniecore-writing").read_text() == str(os.getpid())
    with claimed(other):
        assert [path.name for path in other.iterdir()] == [".erniecore-writing"]


def test_a_hidden_directory_without_our_mark_stays(tmp_path):
    (tmp_path / ".tmp-out-0123abcd").mkdir()
    write(tmp_path / "out", "x")
    assert (tmp_path / ".tmp-out-0123abcd").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.unlink(), "a.txt: the file is missing"),
        (lambda p: p.write_text("xyz"), "a.txt: 3 bytes, written were 1"),
        (lambda p: p.write_text("y"), "a.txt: sha256 differs from the manifest"),
    ],
)
def test_changes_after_writing_are_found(tmp_path, change, message):
    write(tmp_path / "out", "x")
    change(tmp_path / "out" / "a.txt")
    assert verify_directory(tmp_path / "out") == [message]
