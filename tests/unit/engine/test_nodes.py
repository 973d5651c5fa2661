"""The starters of several machines: they meet, tell each other, and notice who is gone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from erniecore.engine.processes import nodes
from erniecore.engine.processes.nodes import Meeting, Site, unique
from erniecore.engine.processes.supervise import clusters, free_port
from erniecore.errors import ConfigError


def quiet(text):
    pass


@pytest.fixture
def links():
    """The two ends of a run on two machines with two ranks each."""
    master = f"127.0.0.1:{free_port()}"
    meetings = [Meeting(Site(2, rank, master), quiet) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda meeting: meeting.join(2, lambda: 4321), meetings))
    yield found
    for end in (*found, *meetings):
        end.close()


def test_all_begin_with_the_same_store_and_names(links):
    assert links[0].start == links[1].start
    assert links[0].start.master == "127.0.0.1:4321"
    assert len(set(links[0].start.names)) == 2


def test_a_failure_anywhere_is_known_everywhere_and_all_learn_how_all_ended(links):
    assert not links[0].look()
    assert not links[1].look()
    assert links[1].look(failed=True)
    while not links[0].look():
        pass
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda link: link.gathered([{"rank": link.site.rank}]), links))
    assert ends[0] == ends[1] == [{"rank": 0}, {"rank": 1}]


@pytest.mark.parametrize("gone", [0, 1])
def test_a_machine_that_is_gone_is_named(links, gone):
    links[gone].close()
    other = links[1 - gone]
    while not other.look():
        pass
    *_, end = other.gathered([{"rank": 7}])
    assert end["rank"] == -1 - gone
    assert end["record"]["fields"]["code"] == "ERN-E025"
    assert other.start.names[gone] in end["record"]["fields"]["message"]


def test_silence_is_being_gone(links, monkeypatch):
    monkeypatch.setattr(nodes, "SILENCE", 0.0)
    while not links[0].look():
        pass
    assert "silent" in links[0].lost[1][1]


def test_a_machine_that_was_started_otherwise_is_refused():
    master = f"127.0.0.1:{free_port()}"
    first, other, right = (Meeting(Site(2, rank, master), quiet) for rank in (0, 1, 1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.join, 2, lambda: 1)
        with pytest.raises(ConfigError, match="--nproc: 3 here, but 2 on the first machine"):
            other.join(3, lambda: 1)
        link = right.join(2, lambda: 1)
        for end in (link, waiting.result(), first):
            end.close()


def test_ranks_are_counted_through_the_machines():
    found = clusters(Site(3, 2, "a:1"), 2, "a:7")
    assert [(c.rank, c.world_size, c.local_rank, c.num_nodes) for c in found] == [(4, 6, 0, 3), (5, 6, 1, 3)]


def test_machines_of_one_name_get_numbers():
    assert unique(["a", "b", "a"]) == ["a-0", "b", "a-2"]


@pytest.mark.parametrize("site", [(2, 2, "a:1"), (2, 0, ""), (2, 0, "host"), (2, 0, "host:x")])
def test_sites_that_cannot_be_are_refused(site):
    with pytest.raises(ConfigError, match=r"--node-rank|--master"):
        Site(*site)
