"""The token cache between processes, in a run's settings and under its batches."""

import multiprocessing
import os

import numpy as np
import pytest
from erniecore_catalog import install_command
from erniecore_sampler.steps import PackedBatchSampler, SamplerSettings
from erniecore_system.locks import locked, try_locked
from erniecore_token_cache.cache import TokenCache

from erniecore.config.core import DataSection, Source
from erniecore.data import encode, splits
from erniecore.data.dataloader import DataLoader
from erniecore.data.parsing import RowParser
from erniecore.data.sources import DataSource
from erniecore.data.splits import SplitReader, cache_directory, user_cache
from erniecore.errors import PluginNotFound


def shards(directory):
    return sorted(directory.rglob("*.tokens"))


# ---- processes


def build(directory, path, barrier, results):
    import toywords

    barrier.wait()
    made = DataSource(str(path), RowParser(toywords.plugin, toywords.Config()))
    cached = TokenCache(directory).encode([made], toywords.Encoder(6))
    results.put((cached.dataset.fingerprint(), cached.report["entries"][0]["made"]))


@pytest.mark.multiproc
def test_processes_that_start_together_build_once(toy, source, jsonl, tmp_path):
    path = jsonl("a.jsonl", 3000)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    workers = [context.Process(target=build, args=(tmp_path / "c", path, barrier, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    assert {fingerprint for fingerprint, _ in found} == {encode.encode([source(path)], toy.Encoder(6))[0].fingerprint()}
    assert sorted(made for _, made in found) == [0, 0, 1]


@pytest.mark.multiproc
def test_workers_give_the_same_files(toy, source, jsonl, tmp_path):
    path = jsonl("a.jsonl", 1500)
    for workers in (0, 2):
        TokenCache(tmp_path / str(workers)).encode([source(path)], toy.Encoder(6), workers=workers)
    alone, shared = (sorted((tmp_path / n).rglob("*.tokens")) for n in ("0", "2"))
    assert [p.read_bytes() for p in alone] == [p.read_bytes() for p in shared]


def test_lock_excludes_others_until_it_is_let_go(tmp_path):
    with locked(tmp_path / "e", "use", shared=True), locked(tmp_path / "e", "use", shared=True):
        assert try_locked(tmp_path / "e", "use") is None
    lock = try_locked(tmp_path / "e", "use")
    assert lock is not None
    lock.close()


# ---- the setting


def test_small_files_stay_in_memory_and_large_ones_do_not(tmp_path, jsonl):
    path = jsonl("a.jsonl", 2)
    packed = tmp_path / "b.jsonl.gz"
    packed.touch()
    assert cache_directory("auto", [path]) is None
    os.truncate(packed, 13 << 20)
    assert cache_directory("auto", [path, packed], {"XDG_CACHE_HOME": "/x"}) == user_cache({"XDG_CACHE_HOME": "/x"})
    assert cache_directory("off", [path, packed]) is None
    assert cache_directory(str(tmp_path), [path]) == tmp_path


def test_without_this_distribution_large_files_stay_in_memory_and_a_directory_is_refused(
    toy, jsonl, tmp_path, monkeypatch
):
    monkeypatch.setattr(splits, "TOKEN_CACHE", "erniecore_absent_cache")
    monkeypatch.setattr(splits, "_LARGE", 1)
    section = DataSection(format="words", train=(Source(path=str(jsonl("a.jsonl", 6))),))
    reader = SplitReader(section, {}, toy.Encoder(6))
    assert len(reader.train(1)[0].dataset) == 6
    assert [
        warning
        for warning in reader.warnings
        if "no token cache is installed: " + install_command("erniecore-token-cache") in warning
    ]
    named = section.model_copy(update={"cache": str(tmp_path / "c")})
    with pytest.raises(PluginNotFound, match="comes with erniecore-absent-cache") as e:
        SplitReader(named, {}, toy.Encoder(6)).train(1)
    assert e.value.next == install_command("erniecore-absent-cache")


def test_run_reports_its_cache(toy, jsonl, tmp_path):
    path = jsonl("a.jsonl", 60)
    section = DataSection(format="words", train=(Source(path=str(path)),), cache=str(tmp_path / "c"), eval_fraction=0.3)
    readers = [SplitReader(section, {}, toy.Encoder(6)) for _ in range(2)]
    splits = [reader.train(1) for reader in readers]
    assert readers[0].report["train"]["cache"]["bytes"] == sum(p.stat().st_size for p in shards(tmp_path / "c"))
    assert "(made)" in " ".join(readers[0].summary)
    assert "(reused)" in " ".join(readers[1].summary)
    memory = SplitReader(section.model_copy(update={"cache": "off"}), {}, toy.Encoder(6)).train(1)
    assert memory[0].dataset.fingerprint() == splits[1][0].dataset.fingerprint()
    assert memory[1].fingerprint() == splits[1][1].fingerprint()
    assert memory[0].contents == splits[1][0].contents


def test_batches_from_disk_are_those_from_memory(toy, source, jsonl, tmp_path, small):
    sources = [source(jsonl("a.jsonl", 40)), source(jsonl("b.jsonl", 11))]
    settings = SamplerSettings(max_seq_len=16, batch_size=2, seed=3)
    stores = [
        encode.encode(sources, toy.Encoder(6))[0],
        TokenCache(tmp_path / "c").encode(sources, toy.Encoder(6)).dataset,
    ]
    one, two = (DataLoader(store, PackedBatchSampler(store, settings), pad_id=0) for store in stores)
    assert one.sampler.total_steps(2) == two.sampler.total_steps(2)
    for step in range(one.sampler.total_steps(2)):
        for a, b in zip(one.step(step), two.step(step), strict=True):
            assert np.array_equal(a.input_ids, b.input_ids)
            assert np.array_equal(a.startend_row_indices, b.startend_row_indices)
            assert a.origins == b.origins
