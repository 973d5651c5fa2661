"""A process that computes prompts or decodes completions: ``python -m erniecore_disaggregated.worker FD``, where the
descriptor is its side of a connection to the router. It ends with the router.

What the router says, and what is said to it; every message about a request has its ``key`` and an ``epoch``::

    configure                         -> ready | broken
    prefill (request, decoder, media) -> tokens, scored, handed | undelivered | finished | failed | refused
    cancel
    drain                             -> drained
    commit (role)                     -> committed | busy
    reopen                            -> opened
    ping                              -> pong

Images of a prompt come as the descriptor of a shared file. A decoder says ``adopted`` when it has a row, then ``tokens`` and
``finished`` or ``failed``. ``at`` counts the tokens before.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api.launcher import follow_parent

if TYPE_CHECKING:
    from erniecore_generation.engine.handoff import Adopted, HandoffEngine
    from erniecore_generation.engine.requests import Event, Ticket
    from erniecore_generation.media import PromptMedia

    from erniecore.api import Json
    from erniecore_disaggregated.channel import Channel, Message
    from erniecore_disaggregated.messages import Grammars
    from erniecore_disaggregated.policy import Role
    from erniecore_disaggregated.receiving import Receiver
    from erniecore_disaggregated.sending import Links, Outgoing

#: seconds between two looks at what has waited too long
_LOOK = 0.1
#: seconds for what has ended to be cleared away
_CLEARED = 2.0


@dataclass(slots=True)
class _Work:
    """What this process does for a request."""

    key: str
    epoch: int
    at: int = 0
    over: bool = False
    ticket: Ticket | None = None
    outgoing: Outgoing | None = None
    lock: Any = field(default_factory=threading.Lock)


class Worker:
    """One process. Messages are taken by the main thread.

    Attributes:
        role, epoch: since the last commit. draining: it is to get nothing new.
    """

    def __init__(
        self, channel: Channel, engine: HandoffEngine, links: Links, grammars: Grammars, role: Role, epoch: int
    ) -> None:
        self.role, self.epoch, self.draining = role, epoch, False
        self._channel, self._engine, self._links, self._grammars = channel, engine, links, grammars
        # grammars take a while, images too: nobody else waits for them
        self._making = ThreadPoolExecutor(1, "erniecore-making")
        self.receiver: Receiver | None = None
        self._work: dict[str, _Work] = {}
        self._lock = threading.RLock()
        self._expired = 0

    def run(self) -> None:
        """Take messages until ``stop``. Raises ``ChannelClosed`` when the router is gone."""
        threading.Thread(target=self._look, name="erniecore-look", daemon=True).start()
        handlers: dict[str, Callable[[Json], None]] = {
            "cancel": self._cancel, "drain": self._drain, "commit": self._commit, "reopen": self._reopen,
            "ping": self._ping,
        }  # fmt: skip
        while (message := self._channel.receive()).head["type"] != "stop":
            if message.head["type"] == "prefill":
                self._prefill(message)
            else:
                handlers[message.head["type"]](message.head)

    def refuses(self, epoch: int) -> str:
        """Why a prompt that was sent for this epoch is not taken; empty: it is."""
        if epoch != self.epoch:
            return f"stale epoch {epoch}: this process is at {self.epoch}"
        return "" if self.role == "decode" else f"this process does not decode at epoch {epoch}"

    def adopt(self, key: str, request: Json, adopted: Adopted, seconds: float) -> None:
        """Decode a row that has come."""
        work = _Work(key, self.epoch, at=1)
        self._say(work, "adopted", seconds=seconds)
        self._begin(work, request, adopted=adopted)

    def _prefill(self, message: Message) -> None:
        from erniecore_disaggregated.sending import Outgoing, Target

        head = message.head
        work = _Work(head["key"], head["epoch"])
        if head["epoch"] != self.epoch or self.role != "prefill" or self.draining:
            found = f"{self.role} at epoch {self.epoch}{', draining' * self.draining}"
            self._say(work, "refused", reason=f"stale epoch {head['epoch']}: this process is {found}")
            message.close()
            return
        name, address, epoch = head["decoder"]
        target = Target(name, address if isinstance(address, str) else tuple(address), epoch)
        work.outgoing = Outgoing(work.key, target, head["request"], self._links, lambda out, why: self._sent(work, why))
        self._begin(work, head["request"], message, sink=work.outgoing)

    def _begin(self, work: _Work, request: Json, images: Message | None = None, **part: Any) -> None:
        """Let the engine do its ``part`` of a request, once what is no JSON of it is there."""
        with self._lock:
            self._work[work.key] = work
        if request["form"] is None and (images is None or images.file < 0):
            self._make(work, request, images, part)
        else:
            self._making.submit(self._make, work, request, images, part)

    def _make(self, work: _Work, request: Json, images: Message | None, part: dict[str, Any]) -> None:
        from erniecore_generation.engine.handoff import HandoffRequest
        from erniecore_generation.engine.requests import Failed

        from erniecore_disaggregated.messages import request_fields
        from erniecore_disaggregated.shared import Damaged

        try:
            part["media"] = None if images is None else _media(images)
            part["constraint"] = self._grammars.constraint(request)
            if not work.over:
                work.ticket = self._engine.submit(
                    HandoffRequest(**request_fields(request), **part), lambda event: self._heard(work, event)
                )
        except Damaged as error:
            assert work.outgoing is not None  # images come with prompts
            work.outgoing.end(str(error))
        except Exception as error:
            self._heard(work, Failed(error))
        if work.over and work.ticket is not None:
            self._engine.cancel(work.ticket)

    def _heard(self, work: _Work, event: Event) -> None:
        """An event of the engine, for the router."""
        from erniecore_disaggregated.messages import event_json

        with work.lock:
            if work.over:
                return
            told = dict(event_json(event))
            kind, at = told.pop("type"), work.at
            work.at += len(told["ids"]) if kind == "tokens" else 0
            work.over = kind in ("finished", "failed")
        if work.over and work.outgoing is not None:
            work.outgoing.discard()
        self._say(work, kind, at=at, **told)
        if work.over:
            self._forget(work)

    def _sent(self, work: _Work, reason: str) -> None:
        """A prompt was taken by its decoder, or was not."""
        with work.lock:
            if work.over:
                return
            work.over = True
        out = work.outgoing
        if out is not None and not reason:
            self._say(work, "handed", cached=out.cached, bytes=out.num_bytes, seconds=time.perf_counter() - out.began)
        else:
            if work.ticket is not None:
                self._engine.cancel(work.ticket)
            self._say(work, "undelivered", reason=reason)
        self._forget(work)

    def _forget(self, work: _Work) -> None:
        with self._lock:
            if self._work.get(work.key) is work:
                del self._work[work.key]

    def _cancel(self, head: Json) -> None:
        with self._lock:
            work = self._work.pop(head["key"], None)
        if self.receiver is not None:
            self.receiver.drop(head["key"])
        if work is None:
            return
        with work.lock:
            work.over = True
        if work.outgoing is not None:
            work.outgoing.discard()
        if work.ticket is not None:
            self._engine.cancel(work.ticket)

    def _drain(self, head: Json) -> None:
        self.draining = True

    @property
    def _left(self) -> int:
        """Requests that this process has something of."""
        stats = self._engine.stats()
        return len(self._work) + len(self._links) + len(self.receiver or ()) + stats.running + stats.waiting

    def _commit(self, head: Json) -> None:
        if head["epoch"] <= self.epoch:
            self._channel.send({"type": "busy", "epoch": head["epoch"], "reason": f"stale: at epoch {self.epoch}"})
        elif self._busy():
            self._channel.send({"type": "busy", "epoch": head["epoch"], "reason": f"{self._left} requests are left"})
        else:
            self.role, self.epoch = head["role"], head["epoch"]
            self._channel.send({"type": "committed", "epoch": self.epoch})

    def _busy(self) -> bool:
        """Whether something is left, also after what has ended just now was cleared away."""
        until = time.monotonic() + _CLEARED
        while self._left and time.monotonic() < until:
            time.sleep(_LOOK / 10)
        return bool(self._left)

    def _reopen(self, head: Json) -> None:
        self.draining = False
        self._channel.send({"type": "opened", "epoch": self.epoch})

    def _ping(self, head: Json) -> None:
        from dataclasses import asdict

        receiver = self.receiver
        assert receiver is not None
        told = {"engine": asdict(self._engine.stats()), "reserved": receiver.num_bytes, "incoming": len(receiver)}
        expired = self._expired + receiver.expired
        self._channel.send({"type": "pong", "epoch": self.epoch, "expired": expired, "left": self._left, **told})

    def _look(self) -> None:
        drained = -1
        while not self._channel.closed:
            now = time.perf_counter()
            self._expired += self._links.expire(now)
            if self.receiver is not None:
                self.receiver.expire(now)
            if self.draining and drained != self.epoch and not self._left:
                drained = self.epoch
                self._channel.send({"type": "drained", "epoch": self.epoch})
            elif not self.draining:
                drained = -1
            time.sleep(_LOOK)

    def _say(self, work: _Work, kind: str, **told: Any) -> None:
        self._channel.send({"type": kind, "key": work.key, "epoch": work.epoch, **told})


def _media(images: Message) -> PromptMedia | None:
    """Those that came with a message. Raises ``Damaged``."""
    from erniecore_disaggregated.shared import read_media

    try:
        return None if images.file < 0 else read_media(images.head["media"], images.file)
    finally:
        images.close()


def main(file: int) -> int:
    """Be a worker for the router at the other side of ``file``."""
    import socket

    from erniecore_disaggregated.channel import Channel, ChannelClosed

    follow_parent()
    connection = socket.socket(fileno=file)
    channel = Channel(connection, seconds=60.0)
    try:
        settings = channel.receive().head
        try:
            worker, told = _made(channel, settings)
        except Exception as error:
            channel.send({"type": "broken", "reason": f"{type(error).__name__}: {error}"})
            channel.receive()  # the router closes; what was sent is there by then
            return 1
        channel.send({"type": "ready", "epoch": worker.epoch, **told})
        worker.run()
    except ChannelClosed:
        return 0
    return 0


def _made(channel: Channel, given: Json) -> tuple[Worker, Json]:
    """The worker, and what the router has to know of it and of the model."""
    from erniecore_openai.serving import read_model

    from erniecore_disaggregated.config import DisaggregatedConfig

    settings = DisaggregatedConfig(**given["settings"])
    model = read_model(settings, Path(given["directory"]), _engine_class)
    # these import Paddle, which reads its environment then
    from erniecore_disaggregated.messages import Grammars
    from erniecore_disaggregated.receiving import Receiver
    from erniecore_disaggregated.sending import Links

    engine = model.engine
    assert isinstance(engine, _engine_class())
    engine.start()
    links = Links(settings.transport, given["secret"], settings.handoff_seconds)
    worker = Worker(channel, engine, links, Grammars(model.vocabulary), given["role"], given["epoch"])
    worker.receiver = Receiver(
        settings.transport, given["secret"], refuses=worker.refuses, adopt=worker.adopt,
        most_bytes=settings.handoff_bytes, seconds=settings.handoff_seconds,
    )  # fmt: skip
    told = {"address": worker.receiver.address, "context": model.context, "vocab_size": model.vocab_size}
    described = {"stop_ids": sorted(model.stop_ids), "generation": model.generation, "name": model.name}
    return worker, {**told, **described}


def _engine_class() -> type[HandoffEngine]:
    from erniecore_generation.engine.handoff import HandoffEngine

    return HandoffEngine


if __name__ == "__main__":
    # nothing is left to save, and threads of libraries would take their time
    os._exit(main(int(sys.argv[1])))
