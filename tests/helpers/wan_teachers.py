"""A teacher in this process, with its server on a port of this machine."""

import json
import socket
import threading
from contextlib import suppress

from erniecore_remote_distill.answering import Answering
from erniecore_remote_distill.service import Facts, TeacherService
from erniecore_remote_distill.teacher_server import TeacherServer


class MortalServer(TeacherServer):
    """A server whose connections can be cut all at once, as those of a process that is killed."""

    def __init__(self, *args):
        self.accepted = []
        super().__init__(*args)

    def get_request(self):
        request, address = super().get_request()
        self.accepted.append(request.dup())
        return request, address

    def close_connections(self):
        for one in self.accepted:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class TeacherHost:
    """A frozen model, the server in front of it, and the thread in which it works.

    Args:
        facts: what is said of it. asleep: it takes questions and replies to none.
    """

    def __init__(self, directory, model, facts, keyring, sites=("east", "west"), port=0, asleep=False):
        self.directory, self.model, self.facts, self.keyring, self.sites = directory, model, facts, keyring, sites
        self._asleep, self._turn = asleep, threading.Lock()
        self.start(port)

    @property
    def asleep(self):
        return self._asleep

    @asleep.setter
    def asleep(self, value):
        with self._turn:  # it takes no question from here on
            self._asleep = value

    def start(self, port=0):
        self.service = TeacherService(self.directory, self.facts, Answering(self.model))
        certificates = [self.keyring / f"{name}.pem" for name in self.sites]
        self.server = MortalServer(("127.0.0.1", port), self.service, self.keyring / "teacher.key", certificates)
        self.port = self.server.server_address[1]
        self.over = threading.Event()
        self.threads = [threading.Thread(target=job, daemon=True) for job in (self.server.serve_forever, self.work)]
        for thread in self.threads:
            thread.start()

    def work(self):
        while not self.over.is_set():
            with self._turn:
                worked = not self._asleep and self.service.work(0)
            if not worked:
                self.over.wait(0.01)

    def stop(self):
        """As a killed process: what was asked and answered is gone, and connections are cut."""
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
        self.server.close_connections()
        for thread in self.threads:
            thread.join()

    def restart(self):
        self.stop()
        self.start(self.port)

    def events(self, kind=None):
        lines = (self.directory / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if kind in (None, event["event"])]


def facts_of(model, tokenizer, **changes):
    """The facts of a model that has no files."""
    from erniecore_distill.opening import tokenizer_digest, vocabulary

    size = vocabulary(model)
    values = {
        "fingerprint": "weights", "tokenizer": tokenizer_digest(tokenizer), "vocab_size": size, "dtype": "float32",
        "most": size - 1, "longest": 4096,
    }  # fmt: skip
    return Facts(**values | changes)
