"""Samples from the disk: the same as from memory, complete or rebuilt, with a key of everything that they depend on."""

import json
from pathlib import Path

import numpy as np
import pytest
from erniecore_text.template import JinjaChatTemplate
from erniecore_text.tokenizer import SentencePieceTokenizer
from erniecore_token_cache.cache import TokenCache
from erniecore_token_cache.keys import _code_of, entry_key
from erniecore_token_cache.shard_dataset import Part, ShardDataset
from erniecore_token_cache.shard_files import Damaged, ShardWriter, open_shard

from erniecore import codes
from erniecore.data import encode
from erniecore.data.dataset import DatasetBuilder
from erniecore.data.parsing import RowParser
from erniecore.data.shards import content_of
from erniecore.data.sources import DataSource
from erniecore.errors import DataError, PluginBroken


class Encoder:
    accepts = ()

    def __init__(self, tokenizer, length):
        self.tokenizer, self.length = tokenizer, length


def same(a, b):
    """Two samples are equal in everything."""
    arrays = ("input_ids", "labels", "position_ids", "end_rows")
    equal = all(np.array_equal(getattr(a, n), getattr(b, n)) for n in arrays)
    equal = equal and all(getattr(a, n).dtype == getattr(b, n).dtype for n in arrays)
    equal = (
        equal and a.fields.keys() == b.fields.keys() and all(np.array_equal(a.fields[n], b.fields[n]) for n in a.fields)
    )
    return equal and (a.truncated, a.origin) == (b.truncated, b.origin)


def shards(directory):
    return sorted(directory.rglob("*.tokens"))


def test_samples_and_account_are_those_of_memory(toy, source, jsonl, tmp_path, small):
    sources = [source(jsonl("a.jsonl", 20, bad=(4, 19))), source(jsonl("b.jsonl", 7))]
    memory, statistics = encode.encode(sources, toy.Encoder(6))
    for turn in range(2):  # made, then read
        cached = TokenCache(tmp_path / "c").encode(sources, toy.Encoder(6))
        assert len(cached.dataset) == len(memory)
        assert all(same(cached.dataset[i], memory[i]) for i in range(len(memory)))
        assert cached.dataset.rows.tolist() == memory.rows.tolist()
        assert cached.dataset.lengths.tolist() == memory.lengths.tolist()
        assert cached.dataset.source_sizes(2) == memory.source_sizes(2)
        assert cached.dataset.num_tokens == memory.num_tokens
        assert cached.dataset.fingerprint() == memory.fingerprint()
        assert cached.statistics.as_dict() == statistics.as_dict()
        assert [e["made"] for e in cached.report["entries"]] == ([4, 2] if turn == 0 else [0, 0])


def test_samples_that_are_not_plain_and_their_fields_come_back(make_sample, tmp_path):
    def odd(n, tag):
        plain = make_sample(n, tag, {"w": np.full(n, tag, np.float32), "v": np.full((n, 2), tag, np.int8)})
        ends, positions = np.full(n, n, np.int32), np.arange(n)
        ends[0], positions[-1] = 1, 0
        return type(plain)(plain.input_ids, plain.labels, positions, ends, plain.fields, "cut", plain.origin)

    builder = DatasetBuilder(["f.jsonl"])
    for row in range(5):
        builder.add(odd(row + 2, row + 1), row, 0)
    memory = builder.finish()
    writer = ShardWriter(tmp_path / "shard-00000.tokens")
    writer.add(memory)
    store = ShardDataset([Part(writer.finish({}), 0, 100)], ["f.jsonl"])
    assert all(same(store[i], memory[i]) for i in range(5))
    assert store.rows.tolist() == [100, 101, 102, 103, 104]
    assert store.fingerprint() == memory.fingerprint()


@pytest.mark.parametrize("what", ["flip", "cut", "empty", "gone", "swapped"])
def test_damaged_shard_is_rebuilt_with_a_warning(toy, source, jsonl, tmp_path, small, what):
    sources = [source(jsonl("a.jsonl", 20))]
    before = TokenCache(tmp_path / "c").encode(sources, toy.Encoder(6)).dataset.fingerprint()
    victim = shards(tmp_path / "c")[1]
    data = bytearray(victim.read_bytes())
    if what == "flip":
        data[5] ^= 1
    elif what == "swapped":
        data = bytearray(shards(tmp_path / "c")[0].read_bytes())
    victim.write_bytes(data[: {"cut": 40, "empty": 0}.get(what, len(data))])
    if what == "gone":
        victim.unlink()
    notes = []
    cached = TokenCache(tmp_path / "c", notes.append).encode(sources, toy.Encoder(6))
    assert cached.dataset.fingerprint() == before
    assert cached.report["entries"][0]["made"] == 1
    assert len(notes) == 1
    assert "shard-00001" in notes[0]


def test_interrupted_build_goes_on_where_it_stopped(toy, source, jsonl, tmp_path, small, monkeypatch):
    path = jsonl("a.jsonl", 20)
    real, calls = ShardWriter.finish, []

    def finish(writer, statistics):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(writer, statistics)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
    assert len(shards(tmp_path / "c")) == 2
    assert not list(tmp_path.rglob("*.tmp"))
    cached = TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
    assert cached.report["entries"][0] | {"bytes": 0, "key": ""} == {
        "file": str(path),
        "key": "",
        "shards": 4,
        "bytes": 0,
        "made": 2,
    }
    assert cached.dataset.fingerprint() == encode.encode([source(path)], toy.Encoder(6))[0].fingerprint()


def test_what_a_killed_process_left_is_cleared_away(toy, source, jsonl, tmp_path):
    path = jsonl("a.jsonl", 3)
    made = TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
    entry = shards(tmp_path / "c")[0].parent
    (entry / "entry.json").unlink()
    (entry / ".shard-00000.tokens.1.tmp").write_text("half")
    again = TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
    assert again.dataset.fingerprint() == made.dataset.fingerprint()
    assert not list(entry.glob(".*.tmp"))


@pytest.mark.parametrize("change", ["content", "format settings", "encoder", "version", "limit"])
def test_everything_that_samples_depend_on_is_in_the_key(toy, source, jsonl, tmp_path, monkeypatch, change):
    path = jsonl("a.jsonl", 4)
    TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
    config = {}
    if change == "content":
        path.write_text(path.read_text().replace("a", "b"))
    elif change == "format settings":
        path.write_text(path.read_text())
        config = {"key": "other"}
    elif change == "version":
        monkeypatch.setattr("erniecore.__version__", "9.9")
    limits = encode.ReadLimits(depth=9) if change == "limit" else encode.LIMITS
    encoder = toy.Encoder(7 if change == "encoder" else 6)
    TokenCache(tmp_path / "c").encode([source(path, **config)], encoder, limits=limits)
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_the_same_content_under_another_name_is_found(toy, source, jsonl, tmp_path):
    path = jsonl("a.jsonl", 4)
    TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
    moved = path.rename(tmp_path / "moved.jsonl")
    cached = TokenCache(tmp_path / "c").encode([source(moved)], toy.Encoder(6))
    assert cached.report["entries"][0]["made"] == 0
    assert cached.dataset[0].origin.file == str(moved)


def test_data_set_directories_are_known_by_the_files_of_their_split(toy, source, jsonl, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("train", "test"):
        jsonl("a.jsonl", 4 if name == "train" else 5).rename(folder / f"{name}-00000-of-00001.jsonl")
    train = content_of(tmp_path / "set:train")
    (folder / "test-00000-of-00001.jsonl").write_text("other")
    assert content_of(tmp_path / "set:train") == train
    (folder / "train-00000-of-00001.jsonl").write_text("other")
    assert content_of(tmp_path / "set:train")["sha256"] != train["sha256"]


def test_tokenizer_template_and_length_are_told_apart(tokenizer, trained, plain, source, jsonl, tmp_path):
    def key(tokenizer, length=8):
        return entry_key(made, content_of(made.path), Encoder(tokenizer, length), encode.LIMITS)[0]

    made = source(jsonl("a.jsonl", 1))
    other = SentencePieceTokenizer(trained.model, trained.files, JinjaChatTemplate(plain.source + " "))
    again = SentencePieceTokenizer(trained.model, trained.files, JinjaChatTemplate(plain.source))
    again.encode("the fox")  # what is computed lazily does not count
    assert len({key(tokenizer), key(other), key(trained), key(tokenizer, 9)}) == 4
    assert key(again) == key(tokenizer)


def test_code_of_what_the_encoder_holds_is_part_of_the_key(site, source, jsonl):
    site.add("toytext", {}, {"toytext.py": "class Splitter: pass"})
    import toytext

    made = source(jsonl("a.jsonl", 1))

    def key():
        _code_of.cache_clear()
        return entry_key(made, content_of(made.path), Encoder(toytext.Splitter(), 8), encode.LIMITS)[0]

    before = key()
    assert key() == before
    Path(toytext.__file__).write_text("class Splitter:\n    'Splits elsewhere.'")
    assert key() != before


def test_code_of_what_reads_the_file_is_part_of_the_key(toy, site, tmp_path):
    code = (
        "import json\n"
        "from erniecore.api import hookimpl\n"
        "from erniecore.api.data import RowReaderPlugin\n"
        "class Reader(RowReaderPlugin):\n"
        "    name, summary = 'toyrows', 'for tests'\n"
        "    @hookimpl\n"
        "    def ernie_read_rows(self, file): yield 1, b'{}'\n"
        "plugin = Reader()\n"
    )
    site.add("toyreader", {"erniecore.readers": {"toyrows": "toyreader:plugin"}}, {"toyreader.py": code})
    (tmp_path / "a.toyrows").write_text("a")
    made = DataSource(str(tmp_path / "a.toyrows"), RowParser(toy.plugin, toy.Config()))

    def key():
        _code_of.cache_clear()
        return entry_key(made, content_of(made.path), toy.Encoder(6), encode.LIMITS)[0]

    before = key()
    assert key() == before
    import toyreader

    Path(toyreader.__file__).write_text(code + "# reads otherwise\n")
    assert key() != before


def test_encoder_without_a_stable_description_is_refused(source, jsonl, tmp_path):
    with pytest.raises(DataError, match="cannot be told apart") as e:
        TokenCache(tmp_path / "c").encode([source(jsonl("a.jsonl", 1))], Encoder(None, lambda: 1))
    assert e.value.code == codes.CACHE_UNKEYED


def test_file_that_breaks_off_is_never_complete(toy, source, tmp_path, small):
    path = tmp_path / "a.json"
    rows = ",\n".join(json.dumps({"text": "abcd"}) for _ in range(10))
    path.write_text(f"[{rows},\n{{")
    for _ in range(2):
        cached = TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
        assert [f.code for f in cached.statistics.failures] == [codes.BROKEN_ARRAY]
    assert not list(tmp_path.rglob("entry.json"))
    assert len(shards(tmp_path / "c")) == 1


def test_method_that_fails_leaves_no_half_shard(toy, source, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "abc"}\n{"text": "bug"}\n')
    with pytest.raises(PluginBroken):
        TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
    assert not shards(tmp_path / "c")
    assert not list(tmp_path.rglob("*.tmp"))


def test_file_that_is_written_meanwhile_is_refused(toy, source, jsonl, tmp_path, monkeypatch):
    path = jsonl("a.jsonl", 9)
    real = ShardWriter.finish

    def finish(writer, statistics):
        path.write_text('{"text": "later"}\n')
        return real(writer, statistics)

    monkeypatch.setattr(ShardWriter, "finish", finish)
    with pytest.raises(DataError, match="changed while it was read"):
        TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
    assert not shards(tmp_path / "c")


def test_directory_that_cannot_be_used_is_named(toy, source, jsonl, tmp_path):
    (tmp_path / "c").write_text("a file")
    with pytest.raises(DataError) as e:
        TokenCache(tmp_path / "c").encode([source(jsonl("a.jsonl", 1))], toy.Encoder(6))
    assert (e.value.code, e.value.where) == (codes.CACHE_UNWRITABLE, str(tmp_path / "c"))


def test_missing_data_file_is_no_fault_of_the_cache(toy, source, tmp_path):
    with pytest.raises(DataError) as e:
        TokenCache(tmp_path / "c").encode([source(tmp_path / "no.jsonl")], toy.Encoder(6))
    assert e.value.code == codes.MISSING_FILE


def test_shard_that_vanishes_under_a_run_is_an_error_with_a_remedy(toy, source, jsonl, tmp_path):
    store = TokenCache(tmp_path / "c").encode([source(jsonl("a.jsonl", 3))], toy.Encoder(6)).dataset
    shards(tmp_path / "c")[0].unlink()
    with pytest.raises(DataError, match="gone or was changed") as e:
        store[0]
    assert e.value.code == codes.CACHE_LOST


def test_file_named_twice_is_kept_once(toy, source, jsonl, tmp_path, small):
    path = jsonl("a.jsonl", 8)
    sources = [source(path), source(path)]
    cached = TokenCache(tmp_path / "c").encode(sources, toy.Encoder(6))
    memory, statistics = encode.encode(sources, toy.Encoder(6))
    assert cached.dataset.rows.tolist() == memory.rows.tolist()
    assert cached.dataset.fingerprint() == memory.fingerprint()
    assert cached.statistics.as_dict() == statistics.as_dict()
    assert len(list((tmp_path / "c").iterdir())) == 1


def test_rows_that_are_all_dropped_are_remembered_too(toy, source, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("{\n" * 5)
    for _ in range(2):
        cached = TokenCache(tmp_path / "c").encode([source(path)], toy.Encoder(6))
        assert (len(cached.dataset), cached.statistics.total("dropped")) == (0, 5)


def test_foreign_ids_are_found_on_disk(make_sample, tmp_path):
    builder = DatasetBuilder(["f.jsonl"])
    for row in range(4):
        builder.add(make_sample(3, row + 1), row, 0)
    writer = ShardWriter(tmp_path / "shard-00000.tokens")
    writer.add(builder.finish())
    store = ShardDataset([Part(writer.finish({}), 0, 0)], ["f.jsonl"])
    memory = builder.finish()
    assert store.foreign_id(10_000) is memory.foreign_id(10_000) is None
    assert store.foreign_id(3001) == memory.foreign_id(3001)
    assert store.foreign_id(3001)[2].line == 3


def test_shard_of_another_format_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr("erniecore_token_cache.shard_files.FORMAT", 99)
    ShardWriter(tmp_path / "s").finish({})
    monkeypatch.undo()
    with pytest.raises(Damaged, match="format 99"):
        open_shard(tmp_path / "s")
