"""Machines that join, and what they are told last."""

import threading
import time
from types import SimpleNamespace

import pytest
from erniecore_elastic_nodes.launcher import Following
from erniecore_elastic_nodes.members import Lobby, join
from erniecore_nodes.agents import Node
from erniecore_nodes.rendezvous import listen

from erniecore.api import EnvironmentFault
from erniecore.api.launcher import RankExit, free_port

SECRET = b"the secret of the machines of a test"


@pytest.fixture
def lobby():
    said, port = [], free_port()
    lobby = Lobby(listen(Node(2, 0, f"127.0.0.1:{port}", SECRET)), SECRET, said.append)
    lobby.address, lobby.said = ("127.0.0.1", port), said
    yield lobby
    lobby.close()


def joined(lobby, secret=SECRET, ranks=2):
    """The channel of a machine that joins, or what it was told instead."""
    found = []

    def machine():
        try:
            found.append(join(lobby.address, secret, "other", ranks, 5.0))
        except EnvironmentFault as error:
            found.append(error)

    thread = threading.Thread(target=machine)
    thread.start()
    while thread.is_alive():
        lobby.look()
        time.sleep(0.005)
    thread.join()
    return found[0]


@pytest.mark.parametrize("late", [False, True])
def test_a_machine_ends_as_the_first_one_says_although_it_is_gone_by_then(lobby, tmp_path, late):
    channel = joined(lobby)
    following = Following(SimpleNamespace(out=tmp_path), channel, "127.0.0.1")
    if late:  # it is about to say that it is there
        following._spoke = -1e9
    lobby.tell_all(do="end", ends=[{"rank": 0, "status": 0, "time": 1.0}])
    lobby.close()
    time.sleep(0.05)
    assert following.wait() == [RankExit(0, 0, 1.0)]
    following.close()


def test_a_machine_whose_first_one_is_gone_without_a_word_says_so(lobby, tmp_path):
    following = Following(SimpleNamespace(out=tmp_path), joined(lobby), "127.0.0.1")
    lobby.close()
    [ended] = following.wait()
    assert ended.record["fields"]["code"] == "ERN-E025"
    following.close()


def test_members_are_numbered_and_others_are_refused(lobby):
    channels = [joined(lobby) for _ in range(2)]
    assert [(member.number, member.name, member.ranks) for member in lobby.members] == [
        (1, "other", 2),
        (2, "other", 2),
    ]
    refused = joined(lobby, secret=b"another secret of other machines")
    assert "same secret" in refused.fix
    assert joined(lobby, ranks=0).code == "ERN-E022"
    assert len(lobby.members) == 2
    why = "it does not know the secret of the run", "it offers no ranks"
    assert lobby.said == [f"refused a connection from 127.0.0.1: {reason}" for reason in why]
    for channel in channels:
        channel.close()
