"""A coordinator in this process, and sites that are vectors."""

import json
import threading
from dataclasses import asdict

import numpy as np
from erniecore_wan import keys, payload
from erniecore_wan.client import CoordinatorClient
from erniecore_wan.coordinator import Coordinator
from erniecore_wan.fragments import vector_digest
from erniecore_wan.outer import Outer
from erniecore_wan.rounds import Terms, merge
from erniecore_wan.server import CoordinatorServer
from erniecore_wan.store import Store

SIZES = [40, 24]


def terms(**changes):
    values = {
        "model": "base", "parameters": "shapes", "sizes": SIZES, "outer": asdict(Outer("nesterov")), "clip": 0.0,
        "adaptive": False, "overhead": 0.1, "cap": 100, "form": "float32", "k": 4, "chunk": 16,
    }  # fmt: skip
    return Terms(values | changes)


class Service:
    """A coordinator with its server on a port of this machine, and the keys of everybody."""

    def __init__(self, directory, life, keyring, sites=("east", "west"), host="127.0.0.1"):
        self.directory, self.life, self.keyring, self.sites, self.host = directory, life, keyring, sites, host
        self.clients = []
        self.start()

    def start(self, port=0):
        self.coordinator = Coordinator(Store(self.directory, keep=4), self.life)
        certificates = [self.keyring / f"{name}.pem" for name in self.sites]
        key = self.keyring / "coordinator.key"
        self.server = CoordinatorServer((self.host, port), self.coordinator, key, certificates)
        self.port = self.server.server_address[1]
        for job in (self.server.serve_forever, lambda: self.server.tick(0.02)):
            threading.Thread(target=job, daemon=True).start()

    def client(self, name, port=None, timeout=20.0, certificate="coordinator", **more):
        address = f"127.0.0.1:{port or self.port}"
        made = CoordinatorClient(
            address, self.keyring / f"{name}.key", self.keyring / f"{certificate}.pem", timeout, **more
        )
        self.clients.append(made)
        return made

    def stop(self):
        for client in self.clients:
            client.close()
        self.server.shutdown()
        self.server.server_close()

    def events(self, kind=None):
        lines = (self.directory / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if kind in (None, event["event"])]


def make_keyring(directory, names=("coordinator", "east", "west", "stranger")):
    for name in names:
        keys.make_keys(name, directory)
    return directory


class VectorSite:
    """A site whose training is a random walk; it follows the protocol as the strategy does."""

    def __init__(self, client, name, seed=0, samples=1.0, agreed=None):
        self.client, self.name, self.samples, self.terms = client, name, samples, agreed or terms()
        self.random = np.random.default_rng(seed)

    def join(self):
        found = self.client.join(self.terms)
        self.anchors = [np.zeros(size, np.float32) for size in SIZES]
        self.states = [{} for _ in SIZES]
        if found["first"]:
            self.client.put_anchor(self.anchors)
        self.round = found["round"]
        return found

    def update(self, **changes):
        fragment = self.round % len(SIZES)
        self.delta = self.random.standard_normal(SIZES[fragment]).astype(np.float32)
        fields = {
            "model": self.terms.digest, "round": self.round, "sender": self.name, "size": len(self.delta),
            "form": "float32", "fragment": fragment, "samples": self.samples, "norm": float(np.linalg.norm(self.delta)),
        } | changes  # fmt: skip
        return payload.pack(payload.Header(**fields), payload.dense_body(self.delta, "float32"))

    def finish_round(self):
        while (result := self.client.result(self.round)) is None:
            pass
        updates = [
            payload.vector_of(*payload.unpack(self.client.update_of(self.round, m.name))) for m in result.members
        ]
        fragment = result.fragment
        merged = merge(self.terms.outer, self.anchors[fragment], self.states[fragment], updates, result.members)
        self.anchors[fragment], self.states[fragment] = merged
        assert vector_digest(self.anchors[fragment]) == result.anchor
        self.round += 1
        return result

    def step(self):
        assert self.client.submit(self.round, self.update()) == "accepted"
        return self.finish_round()
