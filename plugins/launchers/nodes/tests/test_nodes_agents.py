"""The agents of several nodes: they find each other, tell each other, and notice who is gone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from erniecore_nodes import agents
from erniecore_nodes.agents import Node
from erniecore_nodes.rendezvous import Rendezvous, unique

from erniecore.api import ConfigError
from erniecore.api.launcher import RankExit, clusters, free_port


def quiet(text):
    pass


@pytest.fixture
def groups():
    """The two ends of a run on two machines with two ranks each."""
    master = f"127.0.0.1:{free_port()}"
    rendezvous = [Rendezvous(Node(2, rank, master), quiet) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda one: one.join(2, lambda: 4321), rendezvous))
    yield found
    for end in (*found, *rendezvous):
        end.close()


def test_all_begin_with_the_same_store_and_names(groups):
    assert groups[0].world == groups[1].world
    assert groups[0].world.master == "127.0.0.1:4321"
    assert len(set(groups[0].world.names)) == 2


def test_a_failure_anywhere_is_known_everywhere_and_all_learn_how_all_ended(groups):
    assert not groups[0].look()
    assert not groups[1].look()
    assert groups[1].look(failed=True)
    while not groups[0].look():
        pass
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda group: group.gather([RankExit(group.node.rank, 0, 1.0)]), groups))
    assert ends[0] == ends[1] == [RankExit(0, 0, 1.0), RankExit(1, 0, 1.0)]


@pytest.mark.parametrize("gone", [0, 1])
def test_a_machine_that_is_gone_is_named(groups, gone):
    groups[gone].close()
    other = groups[1 - gone]
    while not other.look():
        pass
    *_, end = other.gather([RankExit(7, 0, 1.0)])
    assert end.rank == -1 - gone
    assert end.record["fields"]["code"] == "ERN-E025"
    assert other.world.names[gone] in end.record["fields"]["message"]


def test_silence_is_being_gone(groups, monkeypatch):
    monkeypatch.setattr(agents, "SILENCE", 0.0)
    while not groups[0].look():
        pass
    assert "silent" in groups[0].lost[1][1]


def test_a_machine_that_was_started_otherwise_is_refused():
    master = f"127.0.0.1:{free_port()}"
    first, other, right = (Rendezvous(Node(2, rank, master), quiet) for rank in (0, 1, 1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.join, 2, lambda: 1)
        with pytest.raises(ConfigError, match=r"launcher\.nproc: 3 here, but 2 on the first machine"):
            other.join(3, lambda: 1)
        group = right.join(2, lambda: 1)
        for end in (group, waiting.result(), first):
            end.close()


def test_ranks_are_counted_through_the_machines():
    found = clusters(2, "a:7", nodes=3, node_rank=2)
    assert [(c.rank, c.world_size, c.local_rank, c.num_nodes) for c in found] == [(4, 6, 0, 3), (5, 6, 1, 3)]


def test_machines_of_one_name_get_numbers():
    assert unique(["a", "b", "a"]) == ["a-0", "b", "a-2"]


@pytest.mark.parametrize("node", [(2, 2, "a:1"), (2, 0, ""), (2, 0, "host"), (2, 0, "host:x")])
def test_nodes_that_cannot_be_are_refused(node):
    with pytest.raises(ConfigError, match=r"launcher\.node_rank|launcher\.master"):
        Node(*node)
