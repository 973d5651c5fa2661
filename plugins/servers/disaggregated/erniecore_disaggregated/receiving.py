"""The receiving half of a hand-off (see ``sending.py`` for the messages): keys and values are checked, put together and given
to the engine as a row. What is refused, goes on too long or was cancelled is freed.
"""

from __future__ import annotations

import hmac
import mmap
import secrets
import socket
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from erniecore_generation.engine.handoff import Adopted, RowState
from numpy.typing import NDArray

from erniecore.api import Json
from erniecore_disaggregated.channel import Channel, ChannelClosed, Message
from erniecore_disaggregated.sending import Transport, digest

#: keys of cancelled requests that are remembered, so that a late message begins nothing
_REMEMBERED = 4096


class Refused(Exception):
    """A message that is not taken; the text says why."""


@dataclass(slots=True)
class Incoming:
    """A prompt that is coming.

    Attributes:
        layers: arrays [1, tokens, ...] of each layer. columns: how many of them have come, per layer.
        memory: the sender's shared memory. places: where in it each array begins. touched: when something came last.
    """

    key: str
    tokens: int
    num_bytes: int
    layers: list[list[NDArray[Any]]]
    columns: list[int]
    memory: mmap.mmap | None
    places: list[list[int]]
    channel: Channel
    began: float = field(default_factory=time.perf_counter)
    touched: float = field(default_factory=time.perf_counter)


class Receiver:
    """Listens for prompts.

    Args:
        refuses: why an offer with this epoch is not taken now; empty: it is.
        adopt: gives a row to the engine: (key, request, row, seconds that the hand-off took).
        most_bytes: of all prompts that are coming; seconds: without news after which one is freed.

    Attributes:
        address: where it listens. num_bytes: reserved for what is coming. expired: prompts that were freed late.
    """

    def __init__(
        self, transport: Transport, secret: str, *, refuses: Callable[[int], str],
        adopt: Callable[[str, Json, Adopted, float], None], most_bytes: int, seconds: float,
    ) -> None:  # fmt: skip
        self._secret, self._refuses, self._adopt = secret, refuses, adopt
        self._most_bytes, self._seconds = most_bytes, seconds
        self._incoming: dict[str, Incoming] = {}
        self._dropped: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.RLock()
        self.num_bytes = self.expired = 0
        self.address: str | tuple[str, int]
        if transport == "shared_memory":
            # an abstract name: there is no file that a killed process leaves
            self.address = f"\0erniecore-{secrets.token_hex(12)}"
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(self.address)
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = self._listener.getsockname()[:2]
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="erniecore-receiver", daemon=True).start()

    def __len__(self) -> int:
        """Prompts that are coming."""
        return len(self._incoming)

    def drop(self, key: str) -> None:
        """A request was cancelled: free what is here, and begin nothing that comes late."""
        with self._lock:
            self._dropped[key] = None
            while len(self._dropped) > _REMEMBERED:
                self._dropped.popitem(last=False)
            self._forget(key)

    def expire(self, now: float) -> None:
        """Free what has had no news for too long."""
        with self._lock:
            late = [found for found in self._incoming.values() if now - found.touched > self._seconds]
            for found in late:
                self._refuse(found.channel, found.key, f"nothing came for {self._seconds:g} s")
            self.expired += len(late)

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            channel = Channel(connection, seconds=self._seconds)
            threading.Thread(target=self._serve, args=(channel,), name="erniecore-incoming", daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        try:
            hello = channel.receive().head
            known = hmac.compare_digest(str(hello.get("secret", "")), digest(self._secret))
            while known:
                self._take(channel, channel.receive())
        except (ChannelClosed, KeyError, TypeError, ValueError):
            pass
        channel.close()
        with self._lock:
            for key in [key for key, found in self._incoming.items() if found.channel is channel]:
                self._forget(key)

    def _take(self, channel: Channel, message: Message) -> None:
        key = str(message.head["key"])
        with self._lock:
            try:
                kinds = {"offer": self._take_offer, "layer": self._take_layer, "commit": self._take_commit}
                kinds.get(message.head["type"], self._take_discard)(channel, key, message)
            except Refused as refused:
                self._refuse(channel, key, str(refused))
            except (OSError, MemoryError) as error:
                self._refuse(channel, key, f"no room for the hand-off: {error}")
            finally:
                message.close()

    def _take_offer(self, channel: Channel, key: str, message: Message) -> None:
        head = message.head
        reason = self._refuses(int(head["epoch"]))
        if reason or key in self._dropped or key in self._incoming:
            raise Refused(reason or ("the request was cancelled" if key in self._dropped else "this key is taken"))
        if self.num_bytes + head["bytes"] > self._most_bytes:
            raise Refused(f"no room: {self.num_bytes} of {self._most_bytes} bytes are reserved")
        tokens, places, total = int(head["tokens"]), [], 0
        for layer in head["layout"]:
            starts = []
            for shape, dtype in layer:
                starts.append(total)
                total += tokens * int(np.prod(shape)) * np.dtype(dtype).itemsize
            places.append(starts)
        if total != head["bytes"]:
            raise Refused(f"the layout has {total} bytes, the offer {head['bytes']}")
        layers = [[np.empty((1, tokens, *shape), dtype) for shape, dtype in layer] for layer in head["layout"]]
        memory = mmap.mmap(message.file, total, prot=mmap.PROT_READ) if message.file >= 0 else None
        self._incoming[key] = Incoming(key, tokens, total, layers, [0] * len(layers), memory, places, channel)
        self.num_bytes += total

    def _take_layer(self, channel: Channel, key: str, message: Message) -> None:
        found, head = self._incoming.get(key), message.head
        if found is None:
            return  # refused or cancelled: what was already on its way
        reason = self._refuses(int(head["epoch"]))
        layer, start, end = int(head["layer"]), int(head["start"]), int(head["end"])
        if reason:
            raise Refused(reason)
        if not (0 <= layer < len(found.layers) and found.columns[layer] == start < end <= found.tokens):
            raise Refused(f"layer {layer} has columns up to {start}..{end} in disorder")
        checksum, place = 0, 0
        for array, first in zip(found.layers[layer], found.places[layer], strict=True):
            size = array[0, :1].nbytes
            if found.memory is None:
                part = message.payload[place : place + (end - start) * size]
                place += len(part)
            else:
                part = found.memory[first + start * size : first + end * size]
            checksum = zlib.crc32(part, checksum)
            if len(part) != (end - start) * size:
                raise Refused(f"layer {layer} is too short")
            array[0, start:end] = np.frombuffer(part, array.dtype).reshape(array[0, start:end].shape)
        if checksum != head["checksum"]:
            raise Refused(f"the checksum of layer {layer}, tokens {start} to {end}, is wrong")
        found.columns[layer], found.touched = end, time.perf_counter()

    def _take_commit(self, channel: Channel, key: str, message: Message) -> None:
        found, head = self._incoming.get(key), message.head
        if found is None:
            return
        reason = self._refuses(int(head["epoch"]))
        missing = [layer for layer, columns in enumerate(found.columns) if columns != found.tokens]
        if reason or missing:
            raise Refused(reason or f"layers {missing} are not complete")
        row = RowState(**{**head["row"], "next_ids": tuple(head["row"]["next_ids"])})
        self._forget(key)
        self._adopt(key, head["request"], Adopted(row, found.layers), time.perf_counter() - found.began)
        channel.send({"type": "taken", "key": key})

    def _take_discard(self, channel: Channel, key: str, message: Message) -> None:
        self._forget(key)

    def _refuse(self, channel: Channel, key: str, reason: str) -> None:
        self._forget(key)
        channel.send({"type": "refused", "key": key, "reason": reason})

    def _forget(self, key: str) -> None:
        found = self._incoming.pop(key, None)
        if found is not None:
            self.num_bytes -= found.num_bytes
            if found.memory is not None:
                found.memory.close()
