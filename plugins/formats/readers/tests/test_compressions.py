"""xz and zst: streams of several frames, damage, and files that ask for more memory or grow to more than is given."""

import lzma

import pytest
from erniecore_readers import xz
from erniecore_readers.zst import compress

from erniecore import codes
from erniecore.data.opening import ReadLimits
from erniecore.data.reader import read_rows
from erniecore.errors import DataError, EnvironmentFault

ROW = b'{"text": "%s"}\n' % (b"one two three " * 9000)
PACK = {"xz": lzma.compress, "zst": compress}
kinds = pytest.mark.parametrize("kind", sorted(PACK))
#: 2 GiB of window, and no more than the frame's first bytes
WIDE = b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x01\x00\x00"


def read(tmp_path, kind, data, limits=None):
    path = tmp_path / f"rows.jsonl.{kind}"
    path.write_bytes(data)
    return list(read_rows(path, limits or ReadLimits()))


@kinds
def test_all_frames_are_read(tmp_path, kind):
    rows = read(tmp_path, kind, PACK[kind](ROW * 3) + PACK[kind](ROW))
    assert [line for line, _ in rows] == [1, 2, 3, 4]
    assert len({row["text"] for _, row in rows}) == 1


def test_padding_between_streams_of_xz(tmp_path):
    packed = lzma.compress(ROW)
    assert len(read(tmp_path, "xz", packed + bytes(4) + packed + bytes(8))) == 2


@kinds
def test_damage(tmp_path, kind):
    packed = PACK[kind](ROW * 3)
    for damaged in (packed[:-9], packed[: len(packed) // 2] + bytes(40)):
        with pytest.raises(DataError, match=rf"\.{kind} stream is damaged") as e:
            read(tmp_path, kind, damaged)
        assert e.value.code == codes.BAD_GZIP
    with pytest.raises(DataError, match=rf"no \.{kind} file"):
        read(tmp_path, kind, ROW)


@kinds
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, kind):
    with pytest.raises(DataError, match="grows suspiciously") as e:
        read(tmp_path, kind, PACK[kind](b" " * (4 << 20)), ReadLimits(gzip_free=1 << 20))
    assert e.value.code == codes.GZIP_BOMB


def test_a_dictionary_or_window_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="needs too much memory") as e:
        read(tmp_path, "zst", WIDE)
    assert e.value.code == codes.GZIP_BOMB
    monkeypatch.setattr(xz, "MEMORY", 1 << 20)
    with pytest.raises(DataError, match="needs too much memory"):
        read(tmp_path, "xz", lzma.compress(ROW))


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    import sys

    packed = compress(ROW)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match=r"\.zst files needs pyarrow") as e:
        read(tmp_path, "zst", packed)
    assert "pyarrow" in e.value.fix
