"""Real processes for prompts and for completions, asked through the router: the same bits as one engine, whatever happens."""

import errno
import os
import resource
import signal
import socket
import threading
import zlib
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from clusters import (
    ask,
    directory,
    engine,
    long,
    member,
    reference,
    requests,
    router,
    settled,
    single,
    storm,
    vocabulary,
    when,
)
from erniecore_disaggregated.channel import Channel, ChannelClosed
from erniecore_disaggregated.policy import may_switch
from erniecore_disaggregated.sending import digest
from erniecore_disaggregated.shared import Damaged, SharedMedia, read_media
from erniecore_generation.engine.requests import Failed, Finished, Unavailable
from erniecore_generation.media import MediaSpan, PromptMedia
from openai_client import Forced
from processes import await_end

from erniecore.errors import UsageError

__all__ = ["directory", "engine", "reference", "router", "single", "vocabulary"]


def test_completions_have_the_bits_of_one_process(router, reference, vocabulary):
    wanted = requests(18, vocabulary=vocabulary)
    callers = [ask(router, request) for request in wanted]
    assert [caller.outcome for caller in callers] == reference(wanted)
    settled(router)
    assert router.stats().prefix_hits > 0
    assert router.tally.handed > 0
    assert (router.tally.retried, router.tally.undelivered) == (0, 0)


FAULTS = ("prefill killed in a transfer", "decode killed after", "decode stopped", "both")


@pytest.mark.parametrize("fault", FAULTS)
def test_no_completion_is_lost_twice_or_wrong_when_a_process_is(router, reference, vocabulary, fault):
    settled(router)
    wanted, before = long(6, FAULTS.index(fault) + 10, vocabulary=vocabulary), replace(router.tally)
    prefill, decode = member(router, "prefill"), member(router, "decode")
    stopped = decode.process.pid
    killed = [prefill.process.pid] if "prefill" in fault else [decode.process.pid]
    if fault == "both":
        killed.append(prefill.process.pid)
    if fault == "prefill killed in a transfer":
        # the receiver stands still, so that what was sent is not taken yet
        os.kill(stopped, signal.SIGSTOP)
    callers = [ask(router, request) for request in wanted]
    if fault == "prefill killed in a transfer":
        when(router, lambda: any(c.first and not c.adopted for c in router._calls.values() if c.decode == decode.name))
    else:
        when(
            router,
            lambda: any(c.adopted and len(c.given) > 5 for c in router._calls.values() if c.decode == decode.name),
        )
    for pid in killed:
        os.kill(pid, signal.SIGSTOP if fault == "decode stopped" else signal.SIGKILL)
    if fault == "prefill killed in a transfer":
        with suppress(ProcessLookupError):  # one that stands still for too long is killed
            os.kill(stopped, signal.SIGCONT)
    assert [caller.outcome for caller in callers] == reference(wanted)
    assert all(sum(isinstance(e, Finished | Failed) for e in caller.events) == 1 for caller in callers)
    assert router.tally.retried > before.retried
    settled(router)
    await_end(killed)


def test_a_cancelled_completion_is_freed_on_both_sides(router, vocabulary):
    settled(router)
    before = replace(router.tally)
    callers = [ask(router, request) for request in long(12, 20, 2000, vocabulary)]
    when(router, lambda: sum(call.adopted for call in router._calls.values()) > 2)
    for caller in callers:
        router.cancel(caller.ticket)
    assert [caller.end.reason for caller in callers] == ["abort"] * 12
    settled(router)
    assert router.tally.aborted - before.aborted == 12


def test_without_room_in_shared_memory_there_is_an_error_and_later_none(router, reference):
    settled(router)
    wanted, pid = requests(2, 30), member(router, "prefill").process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, limits[1]))
    ends = [ask(router, request).end for request in wanted]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    assert [type(end.error) for end in ends] == [Unavailable] * 2
    assert "no room for the hand-off: File too large (try 3)" in ends[0].error.found
    assert [ask(router, request).outcome for request in wanted] == reference(wanted)


SEEN = PromptMedia(
    np.arange(9).reshape(3, 3), {"kinds": np.ones((1, 3), np.int64)},
    (MediaSpan(0, 1, {"pixels": np.arange(6, dtype=np.float32).reshape(2, 3)}), MediaSpan(1, 2, {})),
)  # fmt: skip


def test_images_come_through_shared_memory_as_they_are():
    shared = SharedMedia(SEEN)
    read = read_media(shared.described, shared.file)
    assert [(s.start, s.end, list(s.inputs)) for s in read.spans] == [(0, 1, ["pixels"]), (1, 2, [])]
    assert [a.dtype for a in read.arrays] == [a.dtype for a in SEEN.arrays]
    for got, sent in zip(read.arrays, SEEN.arrays, strict=True):
        np.testing.assert_array_equal(got, sent)
    for wrong, reason in (({"checksum": 1}, "checksum"), ({"bytes": 1 << 30}, "cannot be read")):
        with pytest.raises(Damaged, match=reason):
            read_media({**shared.described, **wrong}, shared.file)
    shared.close()


def test_images_that_find_no_room_or_are_damaged_on_their_way_are_an_error(router, monkeypatch):
    settled(router)
    request = replace(requests(1)[0], media=SEEN)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for place, found in (("posix_fallocate", "No space left on device"), ("dup", "No space left on device")):
        with monkeypatch.context() as patch:
            patch.setattr(os, place, full)
            end = ask(router, request).end
        assert (type(end.error), found in end.error.found) == (Unavailable, True)
    made = SharedMedia.__init__

    def damaged(shared, media):
        made(shared, media)
        shared.described["checksum"] = 1

    with monkeypatch.context() as patch:
        patch.setattr(SharedMedia, "__init__", damaged)
        end = ask(router, request).end
    assert "the checksum of images is wrong (try 3)" in end.error.found
    go = threading.Event()
    with monkeypatch.context() as patch:  # cancelled while its file is made
        patch.setattr(SharedMedia, "__init__", lambda *args: (go.wait(), made(*args))[1])
        caller = ask(router, request)
        router.cancel(caller.ticket)
        go.set()
        router._media._pool.submit(len, "").result()
    assert caller.end.reason == "abort"
    settled(router)
    assert len(router._media) == 0


def test_a_router_with_a_stale_epoch_gets_no_completion(router):
    settled(router)
    for role in ("prefill", "decode"):
        states = [state for state in router.cluster.states if state.role == role]
        for state in states:
            state.epoch -= 1
        end = ask(router, requests(1)[0]).end
        for state in states:
            state.epoch += 1
        assert isinstance(end.error, Unavailable)
        assert "stale epoch" in end.error.found
    settled(router)


LAYOUT = [[((1, 2), "float32")], [((1, 2), "float32")]]
OFFER = {"type": "offer", "key": "x.1", "tokens": 2, "layout": LAYOUT, "bytes": 32}
DATA = np.arange(4, dtype=np.float32).tobytes()
LAYER = {"type": "layer", "key": "x.1", "layer": 0, "start": 0, "end": 2, "checksum": zlib.crc32(DATA)}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([({**OFFER, "epoch": 0}, b"")], "stale epoch 0"),
        ([({**OFFER, "bytes": 33}, b"")], "the layout has 32 bytes"),
        ([({**OFFER, "tokens": 1 << 20, "bytes": 1 << 24}, b"")], "no room: 0 of 8388608 bytes"),
        ([(OFFER, b""), ({**LAYER, "checksum": 1}, DATA)], "the checksum of layer 0, tokens 0 to 2, is wrong"),
        ([(OFFER, b""), (LAYER, DATA[:-4])], "layer 0 is too short"),
        ([(OFFER, b""), ({**LAYER, "start": 1}, DATA)], "in disorder"),
        ([(OFFER, b""), ({**LAYER, "epoch": 0}, DATA)], "stale epoch 0"),
        ([(OFFER, b""), (LAYER, DATA), ({"type": "commit", "key": "x.1"}, b"")], "layers [1] are not complete"),
        ([(OFFER, b""), (LAYER, DATA)], "nothing came for 2 s"),
    ],
)
def test_a_hand_off_that_is_not_right_is_refused_and_freed(router, messages, reason):
    decoder = member(router, "decode")
    channel = connected(decoder, router.cluster._secret)
    for head, payload in messages:
        channel.send({"epoch": decoder.state.epoch, **head}, payload)
    told = channel.receive().head
    assert (told["type"], told["key"]) == ("refused", "x.1")
    assert reason in told["reason"]
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.receive()
    settled(router)


def connected(decoder, secret):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(decoder.address)
    channel = Channel(connection, seconds=5)
    channel.send({"type": "hello", "secret": digest(secret)})
    return channel


def test_who_does_not_know_the_secret_hears_nothing(router):
    channel = connected(member(router, "decode"), "another")
    channel.send({**OFFER, "epoch": 0})
    with pytest.raises(ChannelClosed, match=r"gone|reset"):
        channel.receive()


def test_roles_change_under_load_and_every_completion_is_right(router, engine, vocabulary):
    settled(router)
    first, epoch, done = member(router, "prefill").name, router.cluster.epoch, router.cluster.switches["done"]
    with pytest.raises(UsageError, match="last one that is open for prefill"):
        router.switch(first, "decode")
    moved = member(router, "decode").name
    told = router.switch(moved, "prefill")
    assert (told["worker"], told["role"], told["epoch"]) == (moved, "prefill", epoch + 1)
    found = storm(router, engine, vocabulary, switches=4, kills=1)
    assert (found.switches, found.kills, found.errors, found.wrong) == (4, 1, 0, 0)
    assert found.requests == found.equal > 20
    with pytest.raises(UsageError, match="it has this role"):
        router.switch(moved, router.cluster.members[moved].state.role)
    with pytest.raises(UsageError, match="did you mean worker-1"):
        router.switch("worker-11", "decode")
    settled(router)
    assert router.cluster.switches["done"] == done + 5
    # as before, for the tests that follow
    for state in router.cluster.states:
        if state.role == "prefill" and state.name != first and not may_switch(router.cluster.states, state.name):
            router.switch(state.name, "decode")


def test_a_process_that_does_not_finish_in_time_keeps_its_role(router, reference, monkeypatch):
    settled(router)
    settings = router.cluster.settings.model_copy(update={"drain_role_seconds": 0.2})
    monkeypatch.setattr(router.cluster, "settings", settings)
    wanted = long(8, 50, 600)
    callers = [ask(router, request) for request in wanted]
    busy = when(
        router, lambda: [m for m in router.cluster.members.values() if len(m.calls) > 2 and m.state.completions]
    )
    with pytest.raises(UsageError, match=r"requests are left after 0\.2 s"):
        router.switch(busy[0].name, "prefill")
    assert (busy[0].state.role, busy[0].state.status) == ("decode", "open")
    assert [caller.outcome for caller in callers] == reference(wanted)


def test_what_cannot_go_to_another_process_is_refused_at_once(router):
    request = replace(requests(1)[0], constraint=Forced([5], 330))
    with pytest.raises(UsageError, match="constraints that are grammars"):
        ask(router, request)
    with pytest.raises(UsageError, match="longer than the model's context"):
        ask(router, replace(request, constraint=None, ids=(5,) * 5000))
    end = ask(router, replace(request, constraint=None, adapter="nobody")).end
    assert isinstance(end, Failed)
    assert (type(end.error), end.error.message) == (UsageError, "no such adapter")
