"""What a token cache holds, and what may be removed from it."""

import os
import time

import pytest
from erniecore_data.cache_entries import entries, remove_old
from erniecore_system.locks import locked


@pytest.fixture
def directory(tmp_path):
    """Two entries: ``old`` unused for 40 days and ``new``; and a directory that is none of ours."""
    for name, age in (("old", 40), ("new", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "use.lock").touch()
        (tmp_path / name / "shard-00000.tokens").write_bytes(b"12345")
        (tmp_path / name / "entry.json").write_text('{"rows": 3, "about": {"file": "a.jsonl"}}')
        then = time.time() - age * 86400
        os.utime(tmp_path / name / "entry.json", (then, then))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").touch()
    return tmp_path


def test_entries_are_listed_with_their_sizes(directory):
    assert [(e.key, e.file, e.rows, e.bytes, e.complete) for e in entries(directory)] == [
        ("new", "a.jsonl", 3, 5, True),
        ("old", "a.jsonl", 3, 5, True),
    ]


def test_no_cache_is_an_empty_one(tmp_path):
    assert entries(tmp_path / "none") == remove_old(tmp_path / "none", 0) == []


def test_only_what_was_not_used_for_long_is_removed(directory):
    assert [e.key for e in remove_old(directory, 30)] == ["old"]
    assert sorted(p.name for p in directory.iterdir()) == ["new", "other"]


def test_entry_in_use_stays(directory):
    with locked(directory / "old", "use", shared=True):
        assert [e.key for e in remove_old(directory, 0)] == ["new"]
    assert [e.key for e in remove_old(directory, 0)] == ["old"]


def test_unfinished_entry_is_listed_as_such(directory):
    (directory / "new" / "entry.json").write_text("{")
    assert not next(e for e in entries(directory) if e.key == "new").complete
