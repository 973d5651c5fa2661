"""Masked rounds: sites with keys of their own, a coordinator that sees sums alone, and what happens when one is missing."""

import threading
import time

import numpy as np
import pytest
from erniecore_wan import keys, payload
from erniecore_wan.config import WanConfig
from erniecore_wan.fragments import vector_digest
from erniecore_wan.memory import Sent
from erniecore_wan.rounds import merge, merge_sum
from erniecore_wan.sites import Life
from erniecore_wan.transfer import Masker, Transfer
from wan_sites import SIZES, Service, VectorSite, make_keyring, terms

from erniecore.api import ConfigError, EnvironmentFault

NAMES = ("east", "north", "west")
SAMPLES = {"east": 4.0, "north": 1.0, "west": 7.0}
AGREED = terms(secure=True)


@pytest.fixture(scope="module")
def keyring(tmp_path_factory):
    return make_keyring(tmp_path_factory.mktemp("keys"), ("coordinator", *NAMES))


@pytest.fixture
def service(tmp_path, keyring):
    made = Service(tmp_path / "coordinator", Life(quorum=2, limit=600.0, start=3), keyring, NAMES)
    yield made
    made.stop()


class MaskedSite(VectorSite):
    """A site that exchanges as the strategy does, by :class:`Transfer`."""

    def __init__(self, service, name, seed, samples, known=NAMES):
        super().__init__(service.client(name), name, seed, samples, AGREED)
        others = [service.keyring / f"{one}.pem" for one in known if one != name]
        self.masker = Masker(name, keys.shared_secrets(service.keyring / f"{name}.key", others, b"test"))

    def send_and_merge(self, update=None):
        plain = update or self.update()
        transfer = Transfer(self.client, Sent(self.round, self.round % 2, 0, plain, self.delta), self.name, self.masker)
        while (outcome := transfer.poll(0.1)) is None:
            pass
        self.outcome = outcome
        if outcome.result is not None:
            self.follow(outcome)
        return outcome

    def follow(self, outcome):
        result, words = outcome.result, payload.words_of(outcome.updates[0])
        before = self.terms.outer, self.anchors[result.fragment], self.states[result.fragment]
        anchor, state = merge_sum(*before, words, result.members, result.scale)
        assert vector_digest(anchor) == result.anchor
        self.anchors[result.fragment], self.states[result.fragment] = anchor, state
        self.round += 1


@pytest.fixture
def sites(service):
    made = [MaskedSite(service, name, seed, samples) for seed, (name, samples) in enumerate(SAMPLES.items())]
    for site in made:
        site.join()
    return made


def until(find):
    """What ``find`` returns, once it is something."""
    while not (found := find()):
        time.sleep(0.01)
    return found


def at_once(*jobs):
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_sum_gives_what_the_updates_themselves_would(sites):
    before = [(site.anchors[0].copy(), dict(site.states[0])) for site in sites]
    at_once(*(site.send_and_merge for site in sites))
    assert len({vector_digest(site.anchors[0]) for site in sites}) == 1
    members = sites[0].outcome.result.members
    assert [(member.name, member.samples) for member in members] == [("east", 4.0), ("north", 1.0), ("west", 7.0)]
    plain, _ = merge(AGREED.outer, *before[0], [site.delta for site in sites], members)
    np.testing.assert_allclose(sites[0].anchors[0], plain, atol=1e-6)


def test_what_the_coordinator_keeps_of_a_site_is_noise(service, sites):
    at_once(*(site.send_and_merge for site in sites))
    roster = sites[0].outcome.result.roster
    for site in sites:
        kept = service.coordinator.store.updates(0)[site.name]
        header, body = payload.unpack(kept)
        assert header.form == "masked"
        alone = payload.words_of(body).astype(np.int32) / 2.0**26 / (site.samples / roster.scale)
        assert np.abs(np.corrcoef(alone, site.delta)[0, 1]) < 0.5
        assert (np.abs(alone - site.delta) > 1e-3).mean() > 0.9
        with pytest.raises(payload.PayloadRefused, match="no update of"):
            sites[0].client.update_of(0, site.name)


def test_when_a_site_is_missing_the_others_repeat_the_round_among_themselves(service, sites):
    east, north, west = sites
    patient = service.coordinator.life  # north asks, and then sends nothing

    def impatient():
        until(lambda: len(service.events("update")) == 2)
        service.coordinator.life = Life(quorum=2, limit=0.0, start=3)

    at_once(lambda: until(lambda: north.client.roster(0, 1.0)), east.send_and_merge, west.send_and_merge, impatient)
    service.coordinator.life = patient
    assert [member.name for member in east.outcome.result.members] == ["east", "west"]
    assert east.outcome.result.attempt == 1
    assert vector_digest(east.anchors[0]) == vector_digest(west.anchors[0])
    (repeated,) = service.events("repeated")
    assert repeated["missing"] == ["north"]
    late = north.send_and_merge()
    assert late.result is None
    assert "closed without north" in late.reason
    assert north.join()["round"] == 1
    north.anchors, north.states = [a.copy() for a in east.anchors], [dict(s) for s in east.states]
    at_once(*(site.send_and_merge for site in sites))
    assert len(east.outcome.result.members) == 3
    assert len({vector_digest(site.anchors[1]) for site in sites}) == 1


def test_a_site_that_is_not_ready_in_time_is_left_out_of_the_roster(service, sites):
    east, north, west = sites
    service.coordinator.life = Life(quorum=2, limit=0.0, start=3)
    at_once(east.send_and_merge, west.send_and_merge)
    assert [member.name for member in east.outcome.result.members] == ["east", "west"]
    assert service.events("roster")[0]["missing"] == ["north"]
    assert not service.events("repeated")
    assert north.send_and_merge().result is None


def test_a_site_that_starts_again_sends_the_same_bits(service, sites):
    east, north, west = sites
    plain = east.update()
    east.round = 0
    jobs = [threading.Thread(target=site.send_and_merge) for site in (north, west)]
    for job in jobs:
        job.start()
    roster = until(lambda: east.client.roster(0, east.samples))
    assert east.client.submit(0, east.masker.masked(plain, roster)) == "accepted"
    again = MaskedSite(service, "east", 0, 4.0)  # a new process with the same key
    again.anchors, again.states, again.delta = east.anchors, east.states, east.delta
    again.round = 0
    outcome = again.send_and_merge(plain)
    for job in jobs:
        job.join()
    assert outcome.own


def test_a_coordinator_that_is_killed_goes_on_with_the_roster(service, sites):
    east, north, west = sites
    west_is_asking = threading.Thread(target=lambda: until(lambda: west.client.roster(0, 7.0)))
    jobs = [west_is_asking, *(threading.Thread(target=site.send_and_merge) for site in (east, north))]
    for job in jobs:
        job.start()
    until(lambda: len(service.events("update")) == 2)
    west_is_asking.join()
    port = service.port
    service.server.shutdown()
    service.server.server_close()
    service.life = Life(quorum=2, limit=60.0, start=3)
    service.start(port)
    west.send_and_merge()
    for job in jobs:
        job.join()
    assert [member.name for member in west.outcome.result.members] == list(NAMES)
    assert len({vector_digest(site.anchors[0]) for site in sites}) == 1


def test_a_site_that_is_left_alone_sends_nothing(service, sites):
    east, north, west = sites
    at_once(*(site.send_and_merge for site in sites))
    north.client.leave()
    west.client.leave()
    with pytest.raises(EnvironmentFault, match="would not be hidden"):
        east.send_and_merge()
    assert service.events("update")[-1]["round"] == 0


def test_a_site_whose_certificate_is_not_known_is_named(service, sites):
    stranger = MaskedSite(service, "east", 0, 4.0, known=("east", "west"))
    stranger.round, stranger.delta = 0, np.zeros(SIZES[0], np.float32)
    for site in sites[1:]:
        site.client.roster(0, site.samples)
    with pytest.raises(ConfigError, match=r"parallel.peers.*north"):
        stranger.send_and_merge()


def test_a_plain_update_is_refused_where_updates_are_masked(service, sites):
    with pytest.raises(payload.PayloadRefused, match="secure=True"):
        sites[0].client.submit(0, sites[0].update())


def test_two_sites_have_one_secret_that_a_third_one_has_not(keyring):
    def secret(own, other, purpose=b"test"):
        return keys.shared_secrets(keyring / f"{own}.key", [keyring / f"{other}.pem"], purpose)[other]

    assert secret("east", "west") == secret("west", "east")
    assert secret("east", "west") != secret("east", "north")
    assert secret("east", "west") != secret("east", "west", b"another run")
    with pytest.raises(ConfigError, match=r"parallel\.peers"):
        keys.shared_secrets(keyring / "east.key", [keyring / "east.key"], b"")


@pytest.mark.parametrize(
    ("more", "key"),
    [({}, "parallel.peers"), ({"form": "sparse"}, "parallel.form"), ({"clip": 3.0}, "parallel.clip")],
)
def test_settings_that_masked_updates_cannot_have(more, key):
    values = {"coordinator": "a:1", "key": "k", "certificate": "c", "secure": True, **more}
    if more:
        values["peers"] = ["west.pem"]
    with pytest.raises(ConfigError) as caught:
        WanConfig(**values).check()
    assert key in str(caught.value)
