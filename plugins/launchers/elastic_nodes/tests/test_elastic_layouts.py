"""The layout for the ranks that are there, and which copies in memory make a checkpoint."""

import itertools
import json
from pathlib import Path

import pytest
from erniecore_elastic_nodes.layouts import shared
from erniecore_elastic_nodes.memory import COMPLETE, description, divide, files_of, forget, give, inventory, steps_in
from erniecore_elastic_nodes.peers import PeerFiles, neighbor, send
from erniecore_elastic_nodes.slow_ranks import Times, slow

from erniecore.api import CheckpointError
from erniecore.api.launcher import RankExit


def test_shares_are_even_or_differ_by_one_and_keep_the_sum():
    assert shared(8, 3) == (3, 3, 2)
    for total, ranks in itertools.product(range(1, 20), range(1, 6)):
        if ranks <= total:
            found = shared(total, ranks)
            assert (sum(found), max(found) - min(found) <= 1, min(found) >= 1) == (total, True, True)


@pytest.fixture
def layouts():
    """``layouts(words, ranks)``: those of a run whose settings are written for so many ranks."""
    import os

    from erniecore_elastic_nodes.layouts import Layouts

    from erniecore.config.compose import load
    from erniecore.engine.entry import planned_run

    def make(ranks, *words, model="ernie45-moe", **planning):
        fixed = [
            f"model.name={model}",
            "model.size=tiny",
            "method.name=sft",
            "data.train=x.jsonl",
            "parallel.name=hybrid",
        ]
        return Layouts(planned_run(load(None, [*fixed, *words], {}, os.environ), processes=ranks), **planning)

    return make


def settings(chosen):
    return dict(word.split("=") for word in chosen.overrides)


def test_fewer_ranks_have_more_micro_batches_of_the_same_step(layouts):
    found = layouts(4, "train.accumulation=2")
    assert found.micro_batches == 8
    assert settings(found.of(4)) == {"parallel.data": "4", "train.accumulation": "2"}
    assert settings(found.of(3)) == {
        "parallel.data": "3",
        "parallel.micro_batches": "[3,3,2]",
        "train.accumulation": "3",
    }
    assert settings(found.of(1)) == {"train.accumulation": "8"}
    assert settings(found.of(9))["parallel.data"] == "8"  # one of nine ranks has nothing to do


def test_a_planned_layout_is_one_that_the_run_accepts(layouts, tmp_path):
    cluster, asked = tmp_path / "cluster.yaml", []
    machine = "{count: 1, accelerators: 2, accelerator: X, memory: 80, tflops: 300, link: 250}"
    cluster.write_text(f"machines:\n  - {machine}\n")

    def accepts(settings):
        asked.append(settings)
        return "parallel.pipeline=2" not in settings

    planning = {"model": "ernie45", "planned": True, "cluster": cluster}
    assert layouts(1, "train.accumulation=1", **planning).of(2).layout.pipeline == 2
    found = layouts(1, "train.accumulation=1", accepts=accepts, **planning)
    assert found.of(2).layout.pipeline == 1
    before = len(asked)
    assert found.of(2).layout.size == 2
    assert before == len(asked) == len(set(asked))


def test_other_axes_stay_and_what_the_settings_name_is_set_back(layouts):
    found = layouts(8, "parallel.tensor=2", "parallel.data=4", "train.accumulation=1")
    assert settings(found.of(6)) == {
        "parallel.tensor": "2",
        "parallel.data": "3",
        "parallel.micro_batches": "[2,1,1]",
        "train.accumulation": "2",
    }
    notes = []
    assert found.of(5, notes.append).layout.size == 4
    assert "1 of them wait" in notes[0]
    assert settings(found.of(2))["parallel.data"] == "1"


def test_places_of_ranks_stay_as_long_as_they_mean_something(layouts):
    places = "parallel.order=[pipeline,data]", "parallel.ranks=[2,3,0,1]"
    found = layouts(4, "parallel.pipeline=2", "parallel.data=2", *places)
    assert settings(found.of(4))["parallel.ranks"] == "[2,3,0,1]"
    assert settings(found.of(4))["parallel.order"] == "[pipeline,data]"
    assert settings(found.of(2))["parallel.ranks"] == "[]"
    found = layouts(4, "parallel.sharding=4", "parallel.order=[sharding]")
    assert settings(found.of(2))["parallel.order"] == "[sharding]"


def test_experts_and_sharding_take_the_largest_divisors(layouts):
    found = layouts(4, "parallel.sharding=4", "parallel.expert=2", "train.accumulation=1")
    three = found.of(3).layout
    assert (three.sharding, three.data, three.expert, three.shares) == (3, 1, 1, (2, 1, 1))
    assert found.of(2).layout.expert == 2


def write(root, step, rank, files, copy):
    directory = root / f"step-{step:08d}" / f"rank-{rank}"
    directory.mkdir(parents=True)
    for name in files:
        (directory / name).write_bytes(name.encode())
    if copy is not None:
        (directory / COMPLETE).write_text(json.dumps(copy))


def facts(*names):
    return {"files": {name: {"bytes": len(name)} for name in names}}


def test_the_newest_step_that_the_machines_have_together_is_taken(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    old, new = facts("a.safetensors", "b.safetensors"), facts("c.safetensors", "d.safetensors")
    for root, rank, names in ((one, 0, ["a.safetensors"]), (two, 1, ["b.safetensors"])):
        write(root, 4, rank, names, old)
    write(one, 5, 0, ["c.safetensors"], new)  # the other machine was lost before it had its part
    rows = [inventory(one), inventory(two)]
    assert [row["step"] for row in rows[0]] == [5, 4]
    step, gives = divide(rows, lambda step: description(one, step)["files"])
    assert (step, gives) == (4, [["a.safetensors"], ["b.safetensors"]])
    assert divide(rows[:1], lambda step: description(one, step)["files"])[0] == -1
    (tmp_path / "target").mkdir()
    give(two, 4, ["b.safetensors"], tmp_path / "target")
    assert (tmp_path / "target" / "b.safetensors").read_bytes() == b"b.safetensors"
    forget(one, 5)
    assert steps_in(one) == [5]


def test_a_file_of_another_size_is_not_offered(tmp_path):
    write(tmp_path, 1, 0, ["a.safetensors"], facts("a.safetensors"))
    (tmp_path / "step-00000001" / "rank-0" / "a.safetensors").write_bytes(b"half")
    assert inventory(tmp_path) == [{"step": 1, "files": []}]


def test_every_machine_gives_to_another_one():
    assert [neighbor(rank, ["a", "a", "b", "b"]) for rank in range(4)] == [2, 2, 0, 0]
    assert [neighbor(rank, ["a", "b", "c"]) for rank in range(3)] == [1, 2, 0]
    assert neighbor(0, ["a", "a"]) is None


def test_a_peer_keeps_what_it_is_given_and_nothing_of_a_stranger(tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    write(mine, 3, 1, ["a.safetensors", "b.safetensors"], None)
    peer = PeerFiles(theirs, "127.0.0.1")
    files = sorted(files_of(mine, 3).values())
    send(peer.address, peer.token, 1, 3, files)
    assert sorted(path.relative_to(theirs) for path in theirs.rglob("*.safetensors")) == [
        Path("step-00000003/peer-1/a.safetensors"),
        Path("step-00000003/peer-1/b.safetensors"),
    ]
    with pytest.raises(CheckpointError):
        send(peer.address, "another token", 2, 3, files)
    assert not (theirs / "step-00000003" / "peer-2").exists()
    peer.close()
    with pytest.raises(CheckpointError, match=r"not sent|did not keep"):
        send(("127.0.0.1", 9), "", 2, 3, files)


def test_slow_ranks_are_those_that_compute_longer_not_those_that_wait():
    assert slow([1.0, 1.1, 0.9, 1.7], 1.5) == [3]
    assert slow([1.0, 1.2], 1.5) == []
    assert slow([1.0, 4.0], 1.5) == [1]
    times = Times(micro_batches=2)
    times.begin(10.0)
    times.end(3.0, 12.0)  # three seconds, two of them in collectives
    assert times.take() == 0.5


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [((0, 0), "done"), ((75, 75), "saved"), ((0, -9), "lost"), ((75, -9), "lost")],
)
def test_how_a_start_ended(statuses, expected):
    from erniecore_elastic_nodes.generation import outcome

    assert outcome([RankExit(rank, status, 0.0) for rank, status in enumerate(statuses)]) == expected


def test_an_error_that_would_come_again_ends_the_run():
    from erniecore_elastic_nodes.generation import outcome

    record = {"class": "DataError", "fields": {"code": "ERN-D013", "message": "no"}, "exit": 4}
    follower = {"class": "EnvironmentFault", "fields": {"code": "ERN-E021", "message": "gone"}, "exit": 3}
    assert outcome([RankExit(0, 3, 1.0, follower), RankExit(1, 4, 2.0, record)]) == "failed"
    assert outcome([RankExit(0, 3, 1.0, follower)]) == "lost"
