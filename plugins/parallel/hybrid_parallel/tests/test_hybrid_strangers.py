"""The port on which a rank waits for others of its groups: strangers are turned away and hold nobody up for long."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from erniecore_hybrid_parallel import monitored_barrier
from erniecore_hybrid_parallel.monitored_barrier import Listener

pytestmark = pytest.mark.slow


@pytest.fixture
def listeners():
    pair = [Listener(rank, "127.0.0.1", "host", 60.0) for rank in range(2)]
    for listener in pair:
        listener.of = [each.own for each in pair]
    yield pair
    for listener in pair:
        listener._listener.close()


STRANGERS = {
    "another token": b"0123456789abcdef0123456789abcdef /0,1 1\n",
    "no token": b"/0,1 1\n",
    "garbage": b"\xff\x00\n",
    "nothing": b"",
    "a line without end": b"x",
}


@pytest.mark.parametrize("text", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_no_member(listeners, monkeypatch, text):
    monkeypatch.setattr(monitored_barrier, "_FIRST_TIMEOUT", 0.3)
    own = listeners[0].own
    with socket.create_connection((own.host, own.port)) as stranger, ThreadPoolExecutor(2) as pool:
        stranger.sendall(text)
        first = pool.submit(listeners[0].group, [0, 1])
        assert stranger.recv(1) == b""  # closed before any rank has come
        second = listeners[1].group([0, 1])
        with second.peers[0] as one, first.result().peers[1] as other:
            one.sendall(b"a")
            assert other.recv(1) == b"a"


def test_only_the_address_by_which_the_others_come_is_open(listeners):
    assert listeners[0]._listener.getsockname()[0] == "127.0.0.1"
    assert listeners[0].own.token != listeners[1].own.token
    assert listeners[0].own.token not in repr(listeners[0].own)
