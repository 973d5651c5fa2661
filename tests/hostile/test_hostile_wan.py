"""Wide-area training: updates, requests and replies of sites and coordinators that are not what they should be, and files of a
coordinator that are damaged. Rounds go on, and nothing that is not finite comes into the common weights."""

import hashlib
import json
import struct

import numpy as np
import pytest
from erniecore_wan import client, keys, payload
from erniecore_wan.coordinator import Coordinator
from erniecore_wan.rounds import Terms
from erniecore_wan.sites import Life
from erniecore_wan.store import Store
from guarded import guarded
from hostile_files import JSON_TEXTS, SPECIAL, WRONG, assert_refused, shown, special
from wan_sites import SIZES, terms

from erniecore.errors import ErnieError, Exit

pytestmark = pytest.mark.area("wide-area training")
HUGE = [float("inf"), float("nan"), 1e308, -1e308, 10**400, -1, 0, 2**63]


def update(body=None, sender="east", **changes):
    """A site's first update, of which the header says something else."""
    vector = np.ones(SIZES[0], np.float32)
    fields = {"model": terms().digest, "round": 0, "sender": sender, "size": SIZES[0], "form": "float32", "fragment": 0,
              "samples": 1.0, "norm": float(np.linalg.norm(vector)), **changes}  # fmt: skip
    return signed(json.dumps(fields).encode(), vector.tobytes() if body is None else body)


def signed(header, body, length=None):
    front = payload.MAGIC + struct.pack("<I", len(header) if length is None else length) + header + body
    return front + hashlib.sha256(front).digest()


@pytest.fixture
def ends(imported, box):
    """``ends(data)``: one site sends that, another a good update; the round is closed, and the anchor finite."""

    def run(data, **changes):
        def answered():
            agreed = Terms({**terms().values, **changes})
            coordinator = Coordinator(Store(box / "coordinator", keep=4), Life(quorum=1, limit=0.0, start=1))
            for name in ("east", "west"):
                coordinator.join(name, agreed)
            coordinator.put_anchor("west", [np.zeros(size, np.float32) for size in SIZES])
            try:
                coordinator.submit("east", 0, data)
            except payload.PayloadRefused:
                coordinator.submit("west", 0, update(sender="west", model=agreed.digest))
            coordinator.advance()
            assert coordinator.round == 1
            assert all(np.isfinite(anchor).all() for anchor, _ in coordinator._anchors)
            json.dumps(coordinator.status(), allow_nan=False)
            return 0

        return guarded(answered, box=box)

    return run


FIELDS = [
    "model",
    "round",
    "sender",
    "size",
    "form",
    "fragment",
    "attempt",
    "samples",
    "k",
    "chunk",
    "rounding",
    "norm",
    "report",
]


@pytest.mark.parametrize("value", [*WRONG, *HUGE, {"loss": "x"}, {"loss": float("nan")}, {"a": {"b": 1}}], ids=shown)
@pytest.mark.parametrize("field", FIELDS)
def test_a_header_of_an_update(ends, field, value):
    assert_refused(ends(update(**{field: value})), {0})


@pytest.mark.parametrize("text", JSON_TEXTS)
def test_a_header_that_is_none(ends, text):
    assert_refused(ends(signed(JSON_TEXTS[text], b"")), {0})


@pytest.mark.parametrize("length", [0, 1, 2**16 + 1, 2**31, 2**32 - 1])
def test_a_length_of_a_header(ends, length):
    assert_refused(ends(signed(b"{}", b"", length)), {0})


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38, -3e38])
def test_values_of_an_update(ends, value):
    assert_refused(ends(update(np.full(SIZES[0], value, np.float32).tobytes())), {0})


@pytest.mark.parametrize("norm", [0.0, 1e-9, 1.0, 1e9])
def test_a_norm_that_is_not_the_norm(ends, norm):
    assert_refused(ends(update(norm=norm), clip=2.0), {0})


@pytest.mark.parametrize("value", HUGE, ids=shown)
@pytest.mark.parametrize("key", ["step_seconds", "up", "down", "delay", "loss"])
def test_what_a_site_has_measured(ends, key, value):
    report = {"step_seconds": 0.1, "up": 1e6, "down": 1e6, "delay": 0.01, "loss": 2.0, key: value}
    agreed = Terms({**terms().values, "adaptive": True})
    assert_refused(ends(update(model=agreed.digest, report=report), adaptive=True), {0})


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_update(ends, seed):
    data = bytearray(update())
    rng = np.random.default_rng(seed)
    for at in rng.integers(0, len(data), 3):
        data[at] ^= 1 << int(rng.integers(0, 8))
    assert_refused(ends(bytes(data)), {0})


@pytest.mark.parametrize("value", [*WRONG, *HUGE], ids=shown)
@pytest.mark.parametrize("key", ["sizes", "outer", "clip", "overhead", "cap", "k", "chunk"])
def test_terms_of_the_first_site(imported, box, key, value):
    def join():
        agreed = Terms({**terms().values, key: value})
        try:
            agreed.checked()
        except (ValueError, TypeError, LookupError, OverflowError):  # what the server answers with 400
            return 0
        if agreed.sizes != SIZES:  # others, but possible
            return 0
        coordinator = Coordinator(Store(box / "coordinator", keep=4), Life())
        coordinator.join("east", agreed)
        coordinator.put_anchor("east", [np.zeros(size, np.float32) for size in SIZES])
        coordinator.submit("east", 0, update(model=agreed.digest))
        return int(coordinator.round != 1)

    assert_refused(guarded(join, box=box), {0})


@pytest.fixture(scope="module")
def keyring(tmp_path_factory):
    found = tmp_path_factory.mktemp("keys")
    for name in ("coordinator", "east"):
        keys.make_keys(name, found)
    return found


@pytest.fixture
def asks(imported, box, keyring):
    """``asks(reply, call)``: a client whose coordinator gives this reply to everything; how the call ends."""

    def run(reply, call):
        def ask():
            from erniecore.cli.render import show_error

            site = client.CoordinatorClient("127.0.0.1:1", keyring / "east.key", keyring / "coordinator.pem", 0.1)
            site._once = lambda verb, path, body: reply
            try:
                call(site)
            except payload.PayloadRefused:
                return 0
            except ErnieError as error:
                show_error(error)
                return int(error.exit_code)
            return 0

        return guarded(ask, box=box, memory=1 << 30)

    return run


CALLS = {
    "join": lambda site: site.join(terms()),
    "result": lambda site: site.result(0),
    "submit": lambda site: site.submit(0, update()),
    "anchor": lambda site: site.anchor_file("anchor-0-0.safetensors"),
    "update": lambda site: site.update_of(0, "../../x"),
}
REPLIES = [*JSON_TEXTS.values(), *(json.dumps(value).encode() for value in WRONG), b'{"received": 0}', b'{"received": -1}',
           b'{"received": 1e999}', b'{"round": 0, "first": false, "anchors": [{"file": 1, "digest": 2}]}',
           b'{"round": -1, "first": true, "anchors": []}', b'{"kind": ["x"]}', b'{"members": [{}]}',
           b'{"members": [], "round": 0}']  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: repr(reply)[:25])
@pytest.mark.parametrize("status", [200, 409, 403])
@pytest.mark.parametrize("call", CALLS)
def test_what_a_coordinator_replies(asks, call, status, reply):
    assert_refused(asks((status, reply, 1 << 60), CALLS[call]), {0, Exit.ENVIRONMENT})


SITE = {"state": "expected", "round": 0, "samples": 1.0, "up": 1, "down": 1, "seen": 0.0, "lag": 0.0}
STATE = {"round": 0, "anchors": [], "first_loss": 0.0, "terms": terms().values, "sites": {"east": SITE}}


@pytest.fixture
def coordinator(box):
    home = box / "coordinator"
    home.mkdir()
    (home / "events.jsonl").write_text('{"event": "serving", "time": 1}\n')
    return home


def opens(box, directory):
    """Go on as the coordinator of a directory."""

    def restore():
        from erniecore.cli.render import show_error

        try:
            Coordinator(Store(directory, keep=4), Life())
        except ErnieError as error:
            show_error(error)
            return int(error.exit_code)
        return 0

    return guarded(restore, box=box)


ENDED = {0, Exit.CHECKPOINT, Exit.USAGE, Exit.ENVIRONMENT}


@pytest.mark.parametrize("text", JSON_TEXTS)
@pytest.mark.parametrize("file", ["state.json", "events.jsonl"])
def test_a_file_of_a_coordinator(ernie, box, coordinator, file, text):
    (coordinator / file).write_bytes(JSON_TEXTS[text])
    assert_refused(ernie("wan", "status", coordinator), ENDED)
    assert_refused(opens(box, coordinator), ENDED)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("file", ["state.json", "events.jsonl"])
def test_what_is_no_file_of_a_coordinator(ernie, coordinator, file, kind):
    special(coordinator / file, kind)
    assert_refused(ernie("wan", "status", coordinator), ENDED - {0})


@pytest.mark.parametrize("value", WRONG, ids=shown)
@pytest.mark.parametrize("key", STATE)
def test_a_state_of_a_coordinator(ernie, box, coordinator, key, value):
    (coordinator / "state.json").write_text(json.dumps({**STATE, key: value}))
    assert_refused(ernie("wan", "status", coordinator), ENDED)
    assert_refused(opens(box, coordinator), ENDED)


@pytest.mark.parametrize("name", ["\x1b[31m", "../x", "", "\u202e", "x" * 10_000])
def test_a_name_in_a_state(ernie, coordinator, name):
    (coordinator / "state.json").write_text(json.dumps({**STATE, "sites": {name: SITE}}))
    (coordinator / "events.jsonl").write_text(json.dumps({"event": name, "site": name, name: [name]}) + "\n")
    assert_refused(ernie("wan", "status", coordinator), ENDED)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\xff"]
)
@pytest.mark.parametrize("file", ["east.key", "east.pem", "coordinator.pem"])
def test_keys_that_are_none(ernie, box, keyring, file, content):
    import shutil

    shutil.copytree(keyring, box / "keys")
    (box / "keys" / file).write_bytes(content)
    words = ["--coordinator", "127.0.0.1:1", "--key", "keys/east.key", "--certificate", "keys/coordinator.pem"]
    assert_refused(ernie("wan", "status", *words), ENDED - {0})
