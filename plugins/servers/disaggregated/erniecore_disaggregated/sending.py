"""The sending half of a hand-off: keys and values of a prompt go, layer by layer and chunk by chunk, to the process that will
decode it, while the next chunk is computed.

Over shared memory the arrays lie in a file without a name (``memfd_create``), whose descriptor travels with the first message
and which is gone with the last process that has it, however that ends. Over TCP they follow the messages. Messages::

    offer    key, epoch of the decoder, tokens, layout, bytes     [+ descriptor]
    layer    key, epoch, layer, start, end, checksum              [+ bytes over TCP]
    commit   key, epoch, request, row                             all layers were sent
    discard  key                                                  forget it
    taken | refused (reason)                                      what the decoder says to a commit, or before it

The epoch is that of the decoder when the router chose it: one that has changed its role since refuses.
"""

from __future__ import annotations

import hashlib
import mmap
import queue
import socket
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from erniecore_generation.engine.handoff import LayerArrays, RowState

from erniecore.api import Json
from erniecore_disaggregated.channel import Channel, ChannelClosed
from erniecore_disaggregated.shared import shared_file

Transport = Literal["shared_memory", "tcp"]


@dataclass(frozen=True, slots=True)
class Target:
    """The process that will decode: name, address (an abstract Unix name, or host and port) and epoch."""

    name: str
    address: str | tuple[str, int]
    epoch: int


class Outgoing:
    """The keys and values of one prompt on their way; a ``KvSink``. Ends once: by ``over(self, reason)``, an empty reason
    means that the decoder has taken the row.

    Attributes:
        key: of the request and its try. request: what the decoder is told of the request.
        num_bytes: sent so far. cached: tokens of the prompt that were in the prefix cache.
        began: ``time.perf_counter`` of the first column. touched: of the last message.
    """

    def __init__(
        self, key: str, target: Target, request: Json, links: Links, over: Callable[[Outgoing, str], None]
    ) -> None:
        self.key, self.target, self.request = key, target, request
        self.num_bytes = self.cached = 0
        self.began, self.touched = 0.0, time.perf_counter()
        self.ended = self.committed = False
        self._links, self._over, self._lock = links, over, threading.Lock()
        self._memory: mmap.mmap | None = None
        self._places: list[list[tuple[int, int]]] = []
        links.watch(self)

    def columns(self, start: int, layers: Sequence[LayerArrays]) -> None:
        """Queue some columns of all layers."""
        self._links.to(self.target).put(self, lambda channel: self._send(channel, start, layers))

    def handed(self, state: RowState) -> None:
        """Queue the end: the row itself."""
        self.cached = state.cached_tokens
        self._links.to(self.target).put(self, lambda channel: self._commit(channel, state))

    def discard(self) -> None:
        """The request is over: the decoder forgets what it has. No ``over`` follows."""
        with self._lock:
            first, self.ended = not self.ended, True
        self._links.forget(self)
        if first:
            self._links.to(self.target).put(self, self._discard)

    def end(self, reason: str) -> None:
        """Taken, for an empty reason, or failed."""
        with self._lock:
            first, self.ended = not self.ended, True
        self._release()
        if first:
            self._links.forget(self)
            self._over(self, reason)

    def _send(self, channel: Channel, start: int, layers: Sequence[LayerArrays]) -> None:
        if self.ended:
            return
        if not self.began:
            self._offer(channel, layers)
        for layer, arrays in enumerate(layers):
            self._send_layer(channel, layer, start, arrays)
        self.touched = time.perf_counter()

    def _offer(self, channel: Channel, layers: Sequence[LayerArrays]) -> None:
        self.began, tokens, total = time.perf_counter(), len(self.request["ids"]), 0
        for arrays in layers:
            sizes = [array[0, :1].nbytes for array in arrays]
            places = []
            for size in sizes:
                places.append((total, size))
                total += size * tokens
            self._places.append(places)
        layout = [[(array.shape[2:], array.dtype.name) for array in arrays] for arrays in layers]
        head = {"type": "offer", "key": self.key, "epoch": self.target.epoch, "tokens": tokens, "layout": layout}
        file = -1
        if self._links.transport == "shared_memory":
            file, self._memory = shared_file(total)
        channel.send({**head, "bytes": total}, file=file)

    def _send_layer(self, channel: Channel, layer: int, start: int, arrays: LayerArrays) -> None:
        end, checksum = start + arrays[0].shape[1], 0
        data = [np.ascontiguousarray(array).tobytes() for array in arrays]
        for (place, size), part in zip(self._places[layer], data, strict=True):
            checksum = zlib.crc32(part, checksum)
            self.num_bytes += len(part)
            if self._memory is not None:
                self._memory[place + start * size : place + end * size] = part
        head = {"type": "layer", "key": self.key, "epoch": self.target.epoch, "layer": layer, "checksum": checksum}
        channel.send({**head, "start": start, "end": end}, b"" if self._memory is not None else b"".join(data))

    def _commit(self, channel: Channel, state: RowState) -> None:
        if not self.ended:
            head = {"type": "commit", "key": self.key, "epoch": self.target.epoch}
            self.committed, self.touched = True, time.perf_counter()
            channel.send({**head, "request": self.request, "row": asdict(state)})

    def _discard(self, channel: Channel) -> None:
        if self.began:
            channel.send({"type": "discard", "key": self.key})
        self._release()

    def _release(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()


class Link:
    """The connection to one decoder: a thread that connects and sends, and one that hears what the decoder says."""

    def __init__(self, links: Links, address: str | tuple[str, int]) -> None:
        self._links, self._address = links, address
        self._work: queue.SimpleQueue[tuple[Outgoing, Callable[[Channel], None]] | None] = queue.SimpleQueue()
        self.broken = ""
        self.channel: Channel | None = None
        threading.Thread(target=self._run, name="erniecore-sender", daemon=True).start()

    def put(self, outgoing: Outgoing, work: Callable[[Channel], None]) -> None:
        """Let the thread do something for a prompt."""
        self._work.put((outgoing, work))

    def close(self) -> None:
        """End the connection and its threads."""
        self._work.put(None)
        if self.channel is not None:
            self.channel.close()

    def _run(self) -> None:
        try:
            self.channel = channel = _connected(self._address, self._links)
        except OSError as error:
            self._fail(f"no connection to the decoder: {error}")
            return
        threading.Thread(target=self._hear, args=(channel,), name="erniecore-replies", daemon=True).start()
        while (item := self._work.get()) is not None:
            outgoing, work = item
            try:
                work(channel)
            except OSError as error:  # of memory that could not be had
                outgoing.end(f"no room for the hand-off: {error.strerror or error}")

    def _hear(self, channel: Channel) -> None:
        try:
            while True:
                head = channel.receive().head
                self._links.replied(head["key"], "" if head["type"] == "taken" else str(head["reason"]))
        except ChannelClosed as error:
            self._fail(f"the connection to the decoder: {error}")

    def _fail(self, reason: str) -> None:
        self.broken = reason
        self._links.lost(self._address, reason)
        self._work.put(None)


def _connected(address: str | tuple[str, int], links: Links) -> Channel:
    connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(links.seconds)
        connection.connect(address)
        if not isinstance(address, str):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    channel = Channel(connection, seconds=links.seconds)
    channel.send({"type": "hello", "secret": digest(links.secret)})
    return channel


def digest(secret: str) -> str:
    """What shows that one knows the secret of a server's processes."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Links:
    """The connections to all decoders, and what is on its way.

    Args:
        seconds: of a connection, a frame, and from a commit to the reply.
    """

    def __init__(self, transport: Transport, secret: str, seconds: float) -> None:
        self.transport, self.secret, self.seconds = transport, secret, seconds
        self._links: dict[Any, Link] = {}
        self._outgoing: dict[str, Outgoing] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Prompts that are on their way."""
        return len(self._outgoing)

    def to(self, target: Target) -> Link:
        """The connection to a decoder; a new one where the last one broke."""
        address = target.address
        with self._lock:
            link = self._links.get(address)
            if link is None or link.broken:
                link = self._links[address] = Link(self, address)
            return link

    def watch(self, outgoing: Outgoing) -> None:
        """Replies to this one are expected."""
        with self._lock:
            self._outgoing[outgoing.key] = outgoing

    def forget(self, outgoing: Outgoing) -> None:
        """Replies to this one are of no interest."""
        with self._lock:
            self._outgoing.pop(outgoing.key, None)

    def replied(self, key: str, reason: str) -> None:
        """The decoder has taken or refused a row."""
        outgoing = self._outgoing.get(key)
        if outgoing is not None:
            outgoing.end(reason)

    def lost(self, address: Any, reason: str) -> None:
        """A connection is gone, and everything that was on its way there."""
        with self._lock:
            gone = [o for o in self._outgoing.values() if o.target.address == address]
        for outgoing in gone:
            outgoing.end(reason)

    def expire(self, now: float) -> int:
        """End what has waited too long for a reply; how many."""
        with self._lock:
            late = [o for o in self._outgoing.values() if o.committed and now - o.touched > self.seconds]
        for outgoing in late:
            outgoing.end(f"the decoder has not replied for {self.seconds:g} s")
        return len(late)

    def close(self) -> None:
        """End the connections to all decoders."""
        for link in list(self._links.values()):
            link.close()
