"""Samples from the disk change nothing: the same run with the cache, without it, and when it is lost in between."""

import json
import shutil

import pytest

from erniecore.errors import DataError


def test_run_from_the_cache_is_the_run_from_memory(runner):
    runner.run("memory", train__max_steps=4)
    cache = runner.directory / "cache"
    for out in ("made", "reused"):
        runner.run(out, train__max_steps=4, data__cache=cache)
        assert runner.curve(out) == runner.curve("memory")
        assert runner.tensors(4, out) == runner.tensors(4, "memory")
    summaries = [" ".join(runner.events("run_start", out)[0]["data"]) for out in ("made", "reused")]
    assert "(made)" in summaries[0]
    assert "(reused)" in summaries[1]


@pytest.mark.slow
@pytest.mark.multiproc
def test_killed_run_continues_bit_for_bit_with_other_workers_and_a_lost_cache(runner):
    common = {"checkpoint__every": 3, "data__eval_fraction": 0.1}
    cache = runner.directory / "cache"
    runner.complete("straight", **common)
    runner.kill_at(4, "killed", data__cache=cache, data__workers=2, **common)
    shutil.rmtree(cache)
    runner.kill_at(7, "killed", data__cache=cache, data__workers=1, **common)
    runner.complete("killed", **common)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")


def test_damaged_cache_is_told_and_repaired(runner):
    cache = runner.directory / "cache"
    runner.run("a", train__max_steps=2, data__cache=cache)
    shard = next(cache.rglob("*.tokens"))
    shard.write_bytes(shard.read_bytes()[:-9])
    runner.run("b", train__max_steps=2, data__cache=cache)
    assert any("damaged" in e["message"] for e in runner.events("warning", "b") if e["kind"] == "setup")
    assert runner.curve("a") == runner.curve("b")


def test_steps_of_earlier_epochs_are_in_the_checkpoint(runner):
    runner.run(train__max_steps=4, data__packing="none", train__batch_size=8)
    state = json.loads(next((runner.directory / "out" / "ckpt").glob("step-*4/state.json")).read_text())
    assert state["data"]["rows"] == {"0": 90}


def test_account_is_written_also_when_the_data_are_refused(runner):
    bad = runner.directory / "bad.jsonl"
    bad.write_text((runner.home / "train.jsonl").read_text() + "{\n" * 10)
    with pytest.raises(DataError):
        runner.run(data__train=bad)
    report = json.loads((runner.directory / "out" / "data_report.json").read_text())
    assert report["train"]["dropped"] == 10
    assert report["error"]["code"] == "ERN-D050"
