"""What counts as a change of a run's fingerprint, and when a file is read again."""

import os

import pytest
from erniecore_system import contents

from erniecore.engine.models import adapters
from erniecore.engine.preparation import changed_files
from erniecore.errors import UsageError

BEFORE = {"base": {"config.json": "a" * 64}, "plugins": {"erniecore": "1.2.3", "erniecore-x": "1.0.0"}}


def check(accepted=(), before=BEFORE, where="ckpt", **parts):
    return changed_files.check(before, {**BEFORE, **parts}, accepted, where)


def test_nothing_changed_and_nothing_known():
    assert check() == []
    (line,) = check(before=None)
    assert "no run fingerprint" in line


@pytest.mark.parametrize("version", ["1.0.1", "1.0.12.post1"])
def test_a_newer_patch_of_a_plugin_is_a_warning(version):
    (line,) = check(plugins={"erniecore": "1.2.3", "erniecore-x": version})
    assert line == f"plugin erniecore-x is newer: 1.0.0 -> {version}"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"plugins": {"erniecore": "1.3.0", "erniecore-x": "1.0.1"}}, "plugins erniecore: 1.2.3 -> 1.3.0"),
        ({"plugins": {"erniecore": "1.2.2", "erniecore-x": "1.0.0"}}, "plugins erniecore: 1.2.3 -> 1.2.2"),
        ({"plugins": {"erniecore": "1.2.3"}}, "plugins erniecore-x: 1.0.0 -> none"),
        ({"base": {"config.json": "b" * 64}}, "base config.json: aaaaaaaaaaaa… -> bbbbbbbbbbbb…"),
        ({"base": {}}, "base config.json: aaaaaaaaaaaa… -> none"),
        ({"adapter": {"x/a.safetensors": "c" * 64}}, "adapter x/a.safetensors: none -> cccccccccccc…"),
    ],
)
def test_other_changes_are_refused_until_they_are_accepted(parts, said):
    (part,) = parts
    with pytest.raises(UsageError) as caught:
        check(**parts)
    assert caught.value.code == "ERN-C021"
    assert caught.value.message.endswith(said)
    assert f"run.accept_changes=[{part}]" in caught.value.fix
    assert any(note.startswith("accepted (run.accept_changes): ") and said in note for note in check([part], **parts))


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file that is remembered once it is hashed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(contents, "_SETTLED", -1.0)
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(1 << 20))
    return path


def hashed(path):
    with contents.FileHashes(path.parent / "cache" / "hashes.json") as hashes:
        return hashes.of(str(path.parent), ["*.safetensors"])[path.name]


def test_a_file_is_read_once_until_something_happens_to_it(large, monkeypatch):
    first, read = hashed(large), []
    monkeypatch.setattr(contents, "_sha256", lambda path: read.append(path) or "new")
    assert hashed(large) == first
    assert not read
    times = large.stat()
    large.write_bytes(b"x" * (1 << 20))
    os.utime(large, ns=(times.st_atime_ns, times.st_mtime_ns))  # the size and the time of its content stay
    assert hashed(large) == "new"
    assert read == [large]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"x": 3}', b"\xff"])
def test_a_damaged_cache_is_no_cache(large, content):
    first = hashed(large)
    cache = large.parent / "cache" / "hashes.json"
    cache.write_bytes(content)
    assert hashed(large) == first


def test_a_file_that_was_just_written_is_not_remembered(large, monkeypatch):
    monkeypatch.setattr(contents, "_SETTLED", 60.0)
    hashed(large)
    assert not (large.parent / "cache").exists()


def test_the_base_of_a_directory_without_files(tmp_path):
    assert adapters.other_base({"base": contents.model_digest(tmp_path / "hashes.json", tmp_path)}, tmp_path) == ""
    assert adapters.other_base({}, tmp_path) == adapters.other_base(None, tmp_path) == ""
    (tmp_path / "config.json").write_text("{}")
    assert "config.json and weights are " in adapters.other_base({"base": "0" * 64}, tmp_path)
