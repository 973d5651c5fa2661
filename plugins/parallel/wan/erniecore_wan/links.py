"""A link emulator: a TCP relay on this machine that has the rate, delay, jitter, losses and cuts of a wide-area link.

Each direction is a token bucket behind a delay line. TCP hides losses from whoever uses it: a lost segment arrives one
retransmission timeout later, and so does everything behind it. For tests and benchmarks; no privileges needed.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

_CHUNK = 16 << 10


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """What a link is like.

    Attributes:
        rate: bytes per second in each direction; 0: unlimited. delay: seconds one way.
        jitter: seconds, uniform on top of the delay, without reordering.
        loss: share of chunks of up to 16 KiB that arrive ``timeout`` seconds late, with everything behind them.
    """

    rate: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    timeout: float = 0.2


class TokenBucket:
    """Tokens (bytes) that come at a steady rate, up to a burst; pure but for the clock that it is given."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate, self.burst, self._free, self._at = rate, burst, burst, now

    def take(self, count: int, now: float) -> float:
        """Seconds from ``now`` until ``count`` bytes may pass; they are taken."""
        if not self.rate:
            return 0.0
        self._free = min(self.burst, self._free + (now - self._at) * self.rate) - count
        self._at = now
        return max(0.0, -self._free / self.rate)


class LinkEmulator:
    """Listens on a port of this machine and relays to ``target``.

    Attributes:
        port: where it listens. up, down: bytes relayed to and from the target. flips: bytes that are still to be changed
            on their way to the target.
    """

    def __init__(self, target: tuple[str, int], quality: LinkQuality, seed: int = 0) -> None:
        self.target, self.quality, self.up, self.down, self.flips = target, quality, 0, 0, 0
        self._random, self._closed, self._cut_until = random.Random(seed), False, 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._buckets = [TokenBucket(quality.rate, _CHUNK, time.monotonic()) for _ in range(2)]
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds: float) -> None:
        """Close all connections, and refuse new ones for so long."""
        self._cut_until = time.monotonic() + seconds
        self._drop()

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            sockets, self._open = self._open, set()
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if time.monotonic() < self._cut_until:
                    raise ConnectionRefusedError
                far = socket.create_connection(self.target, timeout=10)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, goal, upward in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._relay, args=(source, goal, upward), daemon=True).start()

    def _relay(self, source: socket.socket, goal: socket.socket, upward: bool) -> None:
        waiting: deque[tuple[float, bytes]] = deque()
        last, ended = 0.0, False
        try:
            while not ended or waiting:
                pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
                if not ended and len(waiting) < 64 and select.select([source], [], [], pause)[0]:
                    data = source.recv(_CHUNK)
                    ended = not data
                    if data:
                        last = max(last, self._arrival(len(data), upward))
                        waiting.append((last, self._changed(data, upward)))
                elif ended or len(waiting) >= 64:
                    time.sleep(pause)
                while waiting and waiting[0][0] <= time.monotonic():
                    goal.sendall(waiting.popleft()[1])
            goal.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            with suppress(OSError):
                goal.shutdown(socket.SHUT_RDWR)

    def _arrival(self, count: int, upward: bool) -> float:
        """When ``count`` bytes arrive that were sent now."""
        quality, now = self.quality, time.monotonic()
        with self._lock:
            wait = self._buckets[0 if upward else 1].take(count, now)
            if upward:
                self.up += count
            else:
                self.down += count
            late = quality.timeout if self._random.random() < quality.loss else 0.0
            return now + wait + quality.delay + quality.jitter * self._random.random() + late

    def _changed(self, data: bytes, upward: bool) -> bytes:
        if not upward or self.flips < 1:
            return data
        self.flips -= 1
        return data[:-1] + bytes([data[-1] ^ 1])
