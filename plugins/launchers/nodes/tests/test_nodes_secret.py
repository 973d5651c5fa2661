"""Who may join a run on several machines: those who know its secret. Real connections; what a stranger may try."""

import hashlib
import hmac
import json
import os
import socket
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from erniecore_nodes import handshake
from erniecore_nodes.agents import Node
from erniecore_nodes.channel import FIRST_MOST, SECRET, Channel, Distrusted, read_secret
from erniecore_nodes.launcher import NodesRanks
from erniecore_nodes.rendezvous import Rendezvous

from erniecore.api import ConfigError
from erniecore.api.launcher import RankJob, free_port

RIGHT, WRONG = b"a secret of this run", b"the secret of another"


def node(rank, port, secret=RIGHT, **more):
    return Node(2, rank, f"127.0.0.1:{port}", secret, **more)


class Waiting:
    """The first machine, which waits for the second one. ``said``: what it shows its user."""

    def __init__(self):
        self.port, self.said = free_port(), []
        self.rendezvous = Rendezvous(node(0, self.port), self.said.append)
        self._pool = ThreadPoolExecutor(2)
        self._group = self._pool.submit(self.rendezvous.join, 1, lambda: 1)

    def stranger(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def let_in(self, secret=RIGHT):
        """A machine of the run; both groups."""
        other = Rendezvous(node(1, self.port, secret), self.said.append).join(1, lambda: 1)
        return self._group.result(), other

    def end(self):
        self.rendezvous.close()
        self._pool.shutdown()


@pytest.fixture
def waiting(monkeypatch):
    monkeypatch.setattr(handshake, "FIRST_TIMEOUT", 1.0)
    first = Waiting()
    yield first
    for group in first.let_in():  # whatever a stranger did, the run begins
        group.close()
    first.end()


def closed(peer):
    """What comes until the other end closes."""
    data = b""
    with peer:
        while part := peer.recv(1 << 16):
            data += part
    return data


def answer(peer, secret, do="hello", **changes):
    """What an agent with this secret says, and the bytes."""
    file = peer.makefile("rb")
    nonce = json.loads(file.readline())["nonce"]
    end = Channel(peer, first=False)
    first = end.pack({"do": "answer", "nonce": end.nonce})
    end.agree(secret, nonce)
    return first + end.pack({"do": do, "node": 1, "name": "x", "local": 1, "nodes": 2, **changes})


def test_another_secret_is_refused_on_both_ends_by_name(waiting):
    for secret in (WRONG, b""):
        with pytest.raises(ConfigError, match=r"launcher\.secret_file: the first machine .* not have the same secret"):
            waiting.let_in(secret)
    refused = [text for text in waiting.said if "refused" in text]
    assert refused == ["refused a connection from 127.0.0.1: it does not know the secret of the run"] * 2


def test_the_first_machine_must_know_the_secret_too():
    """Who listens there instead of it learns nothing, and is told by name."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as listener, ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Rendezvous(node(1, port), print).join, 1, lambda: 1)
        peer, _ = listener.accept()
        with peer:
            false = Channel(peer, first=True)
            false.send(do="challenge", nonce=false.nonce)
            said = false.await_message(time.monotonic() + 20)
            false.agree(WRONG, said["nonce"])
            while (line := false.read(FIRST_MOST)) is None:
                pass
            assert RIGHT not in line
            false.send(do="welcome")
            with pytest.raises(ConfigError, match="does not have the same secret"):
                joining.result()


def test_what_was_recorded_is_not_accepted_again(waiting):
    with waiting.stranger() as peer:
        recorded = answer(peer, RIGHT, nodes=3)
        peer.sendall(recorded)
        assert b'"refused"' in closed(peer)  # it was the right secret: it is told why it is refused
    with waiting.stranger() as peer:
        peer.sendall(recorded)
        assert closed(peer).endswith(b'{"do": "distrusted"}\n')


STRANGERS = {
    "garbage": b"\x00\xff\x1b[31m no json\n" * 3,
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "oversize": b"x" * (FIRST_MOST + 2),
    "deep": b"[" * 3000 + b"\n",
    "no nonce": b'{"do": "answer", "nonce": 7}\n',
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.\n",
}


@pytest.mark.parametrize("text", STRANGERS.values(), ids=STRANGERS)
def test_what_no_agent_says_is_refused(waiting, text):
    with waiting.stranger() as peer:
        peer.sendall(text)
        with pytest.raises((ConnectionError, AssertionError)):  # what it had not read is reset
            assert closed(peer).count(b"\n") == 2
    assert any("refused" in text for text in waiting.said)


def test_silence_slowness_and_half_closed_connections_hold_nobody_up(waiting):
    silent, slow, half = (waiting.stranger() for _ in range(3))
    half.shutdown(socket.SHUT_WR)
    assert closed(half).count(b"\n") == 1  # the challenge, and the end
    with silent, slow:
        for byte in b'{"do": "ans':
            slow.sendall(bytes([byte]))
        groups = waiting.let_in()  # meanwhile, without waiting for them
        assert groups[0].world == groups[1].world
        for group in groups:
            group.close()
        assert closed(silent).count(b"\n") == 1
    waiting.end()
    waiting.__init__()


def test_a_slow_stranger_has_limited_time(waiting):
    with waiting.stranger() as peer:
        assert closed(peer).count(b"\n") == 1
    assert any("it said nothing within 1 s" in text for text in waiting.said)


@pytest.fixture
def ends():
    """Two ends of a connection that have agreed."""
    one, two = socket.socketpair()
    first, other = Channel(one, first=True), Channel(two, first=False)
    first.agree(RIGHT, other.nonce)
    other.agree(RIGHT, first.nonce)
    yield first, other
    first.close()
    other.close()


def test_messages_are_bound_to_their_connection_direction_and_number(ends):
    first, other = ends
    line = other.pack({"do": "alive"})[:-1]
    assert first.unpack(line) == {"do": "alive"}
    for wrong in (line, other.pack({"do": "failed"})[:-1].replace(b"failed", b"alive ")):
        with pytest.raises(Distrusted):  # again; changed
            first.unpack(wrong)
    with pytest.raises(Distrusted):  # back to where it came from
        other.unpack(other.pack({"do": "alive"})[:-1])


def test_the_code_is_hmac_sha256_by_a_key_of_both_nonces(ends):
    first, other = ends
    code, _, text = other.pack({"do": "alive"}).rstrip(b"\n").partition(b" ")
    key = hmac.new(RIGHT, f"erniecore agents 1 {first.nonce} {other.nonce}".encode(), hashlib.sha256).digest()
    assert code.decode() == hmac.new(key, b"other 1 " + text, hashlib.sha256).hexdigest()


def test_a_line_without_end_is_cut_off(ends):
    first, other = ends
    other.socket.sendall(b"x" * 8192)
    with pytest.raises(Distrusted, match="more than 4096 bytes"):
        first.await_message(time.monotonic() + 60, 4096)


@pytest.mark.parametrize("master", ["10.0.0.1:29500", "gpu-01:29500", "0.0.0.0:29500"])
def test_a_network_needs_a_secret_unless_the_settings_say_otherwise(master):
    with pytest.raises(ConfigError, match=r"launcher\.secret_file: .* must share a secret"):
        Node(2, 0, master)
    assert Node(2, 0, master, insecure=True)
    assert Node(2, 0, master, RIGHT)
    for alone in ("127.0.0.1:1", "localhost:1"):
        assert Node(2, 0, alone).on_loopback


def test_on_loopback_nobody_else_reaches_the_port():
    port = free_port()
    first = Rendezvous(node(0, port, b""), print)
    assert first._listener.getsockname()[0] == "127.0.0.1"
    first.close()


def test_where_the_secret_is_read(tmp_path):
    notes, file = [], tmp_path / "secret"
    file.write_bytes(RIGHT + b"\n")
    file.chmod(0o600)
    assert read_secret(str(file), {SECRET: "not this one, the file"}, notes.append) == RIGHT
    assert read_secret("", {SECRET: RIGHT.decode()}, notes.append) == RIGHT
    assert read_secret("", {}, notes.append) == b""
    assert not notes
    file.chmod(file.stat().st_mode | stat.S_IRGRP)
    read_secret(str(file), {}, notes.append)
    assert notes == [f"note: other users may read {file}: chmod 600 {file}"]
    for bad in (tmp_path / "none", tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match="the secret cannot be read"):
            read_secret(str(bad), {}, notes.append)
    file.write_text("short")
    with pytest.raises(ConfigError, match="has 5 bytes; 16 to 4096 are needed"):
        read_secret(str(file), {}, notes.append)


def test_the_secret_is_in_no_text_and_not_in_the_environment_of_ranks(waiting, tmp_path, monkeypatch):
    assert RIGHT.decode() not in repr(node(0, 1))
    monkeypatch.setenv(SECRET, RIGHT.decode())
    (tmp_path / "logs").mkdir()
    code = "import os; print(sorted(os.environ))"
    groups = waiting.let_in()
    ranks = NodesRanks(RankJob((sys.executable, "-c", code), {}, tmp_path, 1), groups[1])
    from erniecore.api.launcher import clusters

    ranks.start(clusters(1, "127.0.0.1:1", 2, 1))
    for rank in ranks.ranks:
        rank.process.wait()
    names = (tmp_path / "logs" / "rank-1.out").read_text()
    assert "PADDLE_TRAINER_ID" in names
    assert SECRET not in names
    assert SECRET in os.environ
    for group in groups:
        group.close()
    waiting.end()
    waiting.__init__()
