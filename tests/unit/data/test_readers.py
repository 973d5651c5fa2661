"""Readers of third parties: found by the ending or the scheme alone, in every place where a file can be named."""

import bz2
import gzip
import json
from pathlib import Path

import pytest
from erniecore_catalog import install_command

from erniecore import codes
from erniecore.config.core import Source
from erniecore.data.encode import encode
from erniecore.data.opening import ReadLimits
from erniecore.data.reader import read_rows
from erniecore.data.shards import shards_of
from erniecore.data.sources import resolve
from erniecore.errors import DataError, PluginNotFound

THIRD = """
    import bz2
    import json
    from pathlib import Path
    from erniecore.api import hookimpl
    from erniecore.api.data import DecompressorPlugin, RowReaderPlugin, SchemePlugin

    class Pairs(RowReaderPlugin):
        name, summary = "pairs", "question = answer"
        @hookimpl
        def ernie_read_rows(self, file):
            with file.open() as stream:
                for number, line in enumerate(stream, 1):
                    src, _, tgt = line.decode().strip().partition(" = ")
                    yield number, json.dumps({"src": src, "tgt": tgt}).encode()

    class Bzip(DecompressorPlugin):
        name, summary, magic, damages = "bz2", "bzip2", b"BZh", (OSError,)
        @hookimpl
        def ernie_decompress(self, stream):
            return bz2.BZ2File(stream)

    class Shelf(SchemePlugin):
        name, summary = "shelf", "a directory beside"
        @hookimpl
        def ernie_fetch_file(self, url):
            return Path(__file__).parent / url.partition("://")[2]

    pairs, bzip, shelf = Pairs(), Bzip(), Shelf()
"""
TEXT = b"a = b\nc = d\n"
ROWS = [(1, {"src": "a", "tgt": "b"}), (2, {"src": "c", "tgt": "d"})]


@pytest.fixture
def third(site):
    readers = {
        name: f"thirdreaders:{target}" for name, target in (("pairs", "pairs"), ("bz2", "bzip"), ("shelf", "shelf"))
    }
    site.add("thirdreaders", {"erniecore.readers": readers}, {"thirdreaders.py": THIRD})
    import thirdreaders

    return thirdreaders


def test_an_ending_of_a_third_party_is_read(third, tmp_path):
    (tmp_path / "d.pairs").write_bytes(TEXT)
    assert list(read_rows(tmp_path / "d.pairs")) == ROWS


@pytest.mark.parametrize(("ending", "pack"), [("bz2", bz2.compress), ("gz", gzip.compress)])
def test_compression_goes_around_any_kind_of_file(third, tmp_path, ending, pack):
    (tmp_path / f"d.pairs.{ending}").write_bytes(pack(TEXT))
    (tmp_path / f"D.JSONL.{ending.upper()}").write_bytes(pack(b'{"a": 1}\n'))
    assert list(read_rows(tmp_path / f"d.pairs.{ending}")) == ROWS
    assert list(read_rows(tmp_path / f"D.JSONL.{ending.upper()}")) == [(1, {"a": 1})]


def test_a_compression_of_a_third_party_has_the_guards_of_ours(third, tmp_path):
    packed = bz2.compress(json.dumps({"a": "x" * 200_000}).encode())
    (tmp_path / "d.jsonl.bz2").write_bytes(packed)
    with pytest.raises(DataError, match=r"\.bz2 stream grows") as caught:
        list(read_rows(tmp_path / "d.jsonl.bz2", ReadLimits(gzip_free=1000, gzip_ratio=1)))
    assert caught.value.code == codes.GZIP_BOMB
    (tmp_path / "cut.jsonl.bz2").write_bytes(packed[:-20])
    with pytest.raises(DataError, match=r"\.bz2 stream is damaged"):
        list(read_rows(tmp_path / "cut.jsonl.bz2"))
    (tmp_path / "plain.jsonl").write_bytes(packed)
    with pytest.raises(DataError, match=r"ending \.bz2"):
        list(read_rows(tmp_path / "plain.jsonl"))


def test_shards_of_a_third_party_form_a_data_set(third, tmp_path):
    for name in ("train-00000-of-00002.pairs", "train-00001-of-00002.pairs", "notes.other"):
        (tmp_path / name).write_bytes(TEXT)
    assert [file.name for file in shards_of(tmp_path)] == ["train-00000-of-00002.pairs", "train-00001-of-00002.pairs"]
    assert [line for line, _ in read_rows(tmp_path)] == [1, 2, 3, 4]


def test_a_url_is_fetched_by_the_reader_of_its_scheme(third, tmp_path):
    (tmp_path / "d.jsonl").write_bytes(b'{"src": "a", "tgt": "b"}\n')
    (source,) = resolve([Source(path=f"file://{tmp_path}/d.jsonl")], "erniekit")
    assert (source.file, source.path) == (f"file://{tmp_path}/d.jsonl", tmp_path / "d.jsonl")
    (shelf,) = resolve([Source(path="shelf://some/d.pairs")], "erniekit")
    assert shelf.path.parts[-2:] == ("some", "d.pairs")


@pytest.mark.parametrize("url", ["https://example.org/d.jsonl", str(Path("https://example.org/d.jsonl"))])
def test_a_url_that_nothing_fetches_is_named_whole_with_what_to_do(url, monkeypatch):
    monkeypatch.setenv("ERNIE_PLUGINS", "erniekit")
    with pytest.raises(PluginNotFound) as e:
        resolve([Source(path=url)], "erniekit")
    assert e.value.where == "https://example.org/d.jsonl"
    install = install_command("erniecore-remote")
    assert e.value.fix == f"{install}, or fetch the file and name it: curl -LO https://example.org/d.jsonl"


def test_a_scheme_without_reader_is_an_error_with_the_ones_there_are():
    with pytest.raises(PluginNotFound, match="tape"):
        resolve([Source(path="tape://some/d.jsonl")], "erniekit")


def test_an_ending_without_reader_names_those_that_are_installed(third, tmp_path):
    (tmp_path / "d.sheet").write_bytes(b"x")
    with pytest.raises(DataError) as caught:
        list(read_rows(tmp_path / "d.sheet"))
    assert caught.value.code == codes.UNKNOWN_FILE_TYPE
    assert ".pairs" in caught.value.expected
    assert ".bz2" in caught.value.expected


def test_an_ending_of_ours_that_is_not_installed_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("ERNIE_PLUGINS", "nothing")
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError) as caught:
        list(read_rows(tmp_path / "d.parquet"))
    assert caught.value.fix == install_command("erniecore-columnar")


def test_a_run_names_a_fetched_file_by_its_url(third, tmp_path):
    (tmp_path / "d.pairs").write_bytes(TEXT)
    _, statistics = encode(resolve([Source(path=str(tmp_path / "d.pairs"))], "erniekit"), None)
    assert statistics.total("kept") == 2
