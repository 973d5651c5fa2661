"""Coordinator and sites over real TLS connections: what is exchanged, refused, resumed and survived."""

import socket
import ssl
import threading
import time

import numpy as np
import pytest
from erniecore_wan import keys, payload
from erniecore_wan.links import LinkEmulator, LinkQuality, TokenBucket
from erniecore_wan.sites import Life
from wan_sites import Service, VectorSite, make_keyring, terms

from erniecore.api import EnvironmentFault, UsageError


@pytest.fixture(scope="module")
def keyring(tmp_path_factory):
    return make_keyring(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def service(tmp_path, keyring):
    made = Service(tmp_path / "coordinator", Life(quorum=1, limit=30.0, start=2), keyring)
    yield made
    made.stop()


def together(*jobs):
    """Run at the same time; their results, or the first error."""
    found = [None] * len(jobs)

    def run(index):
        try:
            found[index] = jobs[index]()
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def pair(service, **more):
    east = VectorSite(service.client("east", **more), "east", 1)
    west = VectorSite(service.client("west"), "west", 2, samples=3.0)
    assert east.join()["first"]
    assert not west.join()["first"]
    return east, west


def test_keys_are_private_named_and_never_overwritten(keyring):
    assert (keyring / "east.key").stat().st_mode & 0o77 == 0
    assert set(keys.pins([keyring / "east.pem", keyring / "west.pem"]).values()) == {"east", "west"}
    with pytest.raises(UsageError, match="there are keys"):
        keys.make_keys("east", keyring)
    with pytest.raises(UsageError, match="small letters"):
        keys.make_keys("../east", keyring)
    with pytest.raises(UsageError, match="no certificate"):
        keys.pins([keyring / "east.key"])


def test_sites_have_the_same_bits_after_every_round_and_all_is_counted(service):
    east, west = pair(service)
    for _ in range(5):
        one, other = together(east.step, west.step)
        assert one == other
        assert [member.name for member in one.members] == ["east", "west"]
        assert [member.samples for member in one.members] == [1.0, 3.0]
    assert all((a == b).all() for a, b in zip(east.anchors, west.anchors, strict=True))
    assert all(anchor.any() for anchor in east.anchors)
    rows = {row["name"]: row for row in east.client.status()["sites"]}
    assert rows["east"]["up"] == east.client.sent - 4 * 64  # the first anchor is no update
    assert rows["west"]["samples"] == 15.0
    assert [event["fragment"] for event in service.events("closed")] == [0, 1, 0, 1, 0]
    east.client.leave()
    west.client.leave()
    assert service.coordinator.done


def refusals(service, kind):
    deadline = time.monotonic() + 20
    while not (found := [e for e in service.events("refused") if e["kind"] == kind]):
        assert time.monotonic() < deadline, service.events()
        time.sleep(0.02)
    return found


def test_damaged_replayed_foreign_and_oversized_updates_are_refused_and_the_round_goes_on(service):
    east, west = pair(service)
    good = east.update()
    client = east.client

    def refused(kind, data, round_=0):
        with pytest.raises(payload.PayloadRefused) as caught:
            client.submit(round_, data)
        assert caught.value.kind == kind
        assert any(event["site"] == "east" for event in refusals(service, kind))

    refused("damaged", good[:-40] + bytes([good[-40] ^ 4]) + good[-39:])
    refused("damaged", east.update()[:-32] + bytes(32))
    refused("wrong-model", east.update(model="other"))
    refused("replayed", east.update(round=2, fragment=0))
    refused("replayed", east.update(sender="west"))
    refused("too-large", bytes(100_000))
    assert client.submit(0, good) == "accepted"
    assert client.submit(0, good) == "known"
    refused("replayed", east.update())
    together(lambda: east.finish_round(), west.step)
    refused("replayed", good, round_=1)
    assert client.submit(0, good) == "known"
    together(east.step, west.step)


def test_a_site_with_another_model_or_other_settings_does_not_get_in(service):
    pair(service)
    for changes, kind, named in (
        ({"model": "other"}, "wrong-model", "model is 'other'; the run has 'base'"),
        ({"clip": 2.0}, "wrong-settings", "clip is 2.0; the run has 0.0"),
    ):
        other = VectorSite(service.client("west"), "west", agreed=terms(**changes))
        with pytest.raises(payload.PayloadRefused, match=named) as caught:
            other.join()
        assert caught.value.kind == kind
        assert refusals(service, kind)[0]["site"] == "west"


def received(connection, request):
    """Whether the coordinator replies to a request; it may hang up instead."""
    try:
        connection.sendall(request)
        return b"HTTP" in connection.recv(100)
    except OSError:
        return False


def test_a_stranger_a_plain_connection_and_a_flood_are_refused_and_nobody_stops(service):
    east, west = pair(service)
    with pytest.raises(payload.PayloadRefused) as caught:
        service.client("stranger").join(terms())
    assert caught.value.kind == "stranger"
    assert refusals(service, "stranger")
    with pytest.raises(EnvironmentFault, match="another coordinator"):
        service.client("east", certificate="west").join(terms())
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    request = b"GET /status HTTP/1.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port)) as plain:
        assert not received(plain, request)
    with bare.wrap_socket(socket.create_connection(("127.0.0.1", service.port))) as nameless:
        assert not received(nameless, request)
    assert refusals(service, "damaged")
    flood = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(60)]
    assert refusals(service, "flood")
    together(east.step, west.step)
    for one in flood:
        one.close()


def test_a_round_closes_by_quorum_and_who_was_late_takes_part_again(tmp_path, keyring):
    service = Service(tmp_path / "c", Life(quorum=1, limit=0.2, start=2), keyring)
    east, west = pair(service)
    late = west.update()
    result = east.step()
    assert [member.name for member in result.members] == ["east"]
    assert "0.2 s" in result.missing["west"]
    assert "quorum 1" in result.reason
    with pytest.raises(payload.PayloadRefused, match="closed without west") as caught:
        west.client.submit(0, late)
    assert caught.value.kind == "late"
    assert service.coordinator.sites["west"].state == "late"
    found = west.client.join(west.terms)
    assert found["round"] == 1
    for i, anchor in enumerate(found["anchors"]):
        path = tmp_path / "fetched.safetensors"
        path.write_bytes(west.client.anchor_file(anchor["file"]))
        from erniecore_wan.store import read_anchor

        west.anchors[i], west.states[i] = read_anchor(path)
        assert (west.anchors[i] == east.anchors[i]).all()
    west.round = 1
    service.coordinator.life = Life(quorum=1, limit=60.0)
    east.client.submit(1, east.update())
    assert len(together(east.finish_round, west.step)[0].members) == 2
    assert (east.anchors[1] == west.anchors[1]).all()
    service.stop()


def test_without_a_quorum_a_round_waits_and_says_so(tmp_path, keyring):
    service = Service(tmp_path / "c", Life(quorum=2, limit=0.05, start=1), keyring)
    east, west = pair(service)
    east.client.submit(0, east.update())
    assert east.client.result(0, wait=0.3) is None
    assert service.events("waiting")[0]["absent"] == ["west"]
    together(east.finish_round, west.step)
    service.stop()


def test_a_coordinator_that_was_killed_goes_on_with_what_it_had_accepted(service):
    east, west = pair(service)
    together(east.step, west.step)
    assert east.client.submit(1, east.update()) == "accepted"
    port, before = service.port, service.coordinator
    service.stop()
    service.start(port)
    assert service.coordinator is not before
    assert service.events("restarted")[0] | {"time": 0} == {
        "event": "restarted", "time": 0, "round": 1, "updates": ["east"],
    }  # fmt: skip
    together(east.finish_round, west.step)
    assert (east.anchors[1] == west.anchors[1]).all()


def test_a_transfer_goes_on_behind_cuts_changed_bytes_and_losses(service):
    link = LinkEmulator(("127.0.0.1", service.port), LinkQuality(delay=0.002, jitter=0.002, loss=0.02, timeout=0.02))
    told = []
    client = service.client("east", port=link.port, tell=told.append)
    size = 1_200_000
    client.join(terms(sizes=[size]))
    link.flips = 1
    data = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    cutter = threading.Timer(0.15, lambda: link.cut(0.1))
    cutter.start()
    client.put_anchor([data])
    assert (service.coordinator._anchors[0][0] == data).all()
    assert refusals(service, "damaged")
    assert told
    assert client.up > 0
    assert client.delay > 0.004
    link.close()


def test_a_token_bucket_lets_a_burst_pass_and_then_its_rate():
    bucket = TokenBucket(rate=100.0, burst=50.0, now=0.0)
    assert bucket.take(50, 0.0) == 0
    assert bucket.take(100, 0.0) == pytest.approx(1.0)
    assert bucket.take(100, 2.0) == pytest.approx(0.5)  # 200 tokens came, 100 of them were owed, at most 50 stay
    assert TokenBucket(0.0, 1.0, 0.0).take(10**9, 0.0) == 0
