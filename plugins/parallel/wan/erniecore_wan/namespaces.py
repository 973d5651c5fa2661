"""A slow link made by the kernel: a network namespace, joined to this one by a pair of virtual devices whose rate `tc` limits.
Programs that run in the namespace use the link without knowing it. For tests and benchmarks on Linux, with the rights of root
and the programs `ip` and `tc` (iproute2); ``links.py`` emulates a link without either.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from types import TracebackType

from erniecore.api import EnvironmentFault
from erniecore_wan.links import LinkQuality

#: bytes that pass at once; seconds that a packet may wait before it is dropped
_BURST, _LATENCY = 16 << 10, 1.0


class NamespaceLink:
    """A namespace and its link, from entering the context until leaving it.

    Args:
        quality: rate in each direction by the queue `tbf`; delay, jitter and loss by `netem`, which the kernel must have.
            ``timeout`` is TCP's own here.

    Attributes:
        here, there: addresses of the two ends, in this namespace and in the other one.

    Raises:
        EnvironmentFault: on entering: the machine does not allow it, or its kernel lacks a queue.
    """

    def __init__(self, quality: LinkQuality) -> None:
        self.quality, self._name = quality, f"wan{uuid.uuid4().hex[:8]}"
        self._near, self._far = f"{self._name}a", f"{self._name}b"
        net = 1 + os.getpid() % 250
        self.here, self.there = f"10.211.{net}.1", f"10.211.{net}.2"

    def __enter__(self) -> NamespaceLink:
        try:
            self._make()
        except EnvironmentFault:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def command(self, *words: str) -> list[str]:
        """The command line that runs ``words`` in the namespace."""
        return ["ip", "netns", "exec", self._name, *words]

    def up(self, connected: bool) -> None:
        """Connect the link, or cut it; connections live as long as TCP lets them."""
        _run("ip", "link", "set", self._near, "up" if connected else "down")

    def close(self) -> None:
        """Remove the namespace, and the devices with it."""
        subprocess.run(["ip", "netns", "del", self._name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._near], capture_output=True, check=False)

    def _make(self) -> None:
        _run("ip", "netns", "add", self._name)
        _run("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", self._name)
        for front, device, address in (((), self._near, self.here), (self.command(), self._far, self.there)):
            _run(*front, "ip", "addr", "add", f"{address}/24", "dev", device)
            _run(*front, "ip", "link", "set", device, "up")
            self._shape(front, device)
        _run(*self.command("ip", "link", "set", "lo", "up"))

    def _shape(self, front: tuple[str, ...] | list[str], device: str) -> None:
        quality, parent = self.quality, ["root", "handle", "1:"]
        if quality.delay or quality.jitter or quality.loss:
            delays = [f"{1e6 * seconds:.0f}us" for seconds in (quality.delay, quality.jitter)]
            _run(*front, "tc", "qdisc", "add", "dev", device, *parent, "netem", "delay", *delays, "loss",
                 f"{100 * quality.loss:g}%")  # fmt: skip
            parent = ["parent", "1:", "handle", "2:"]
        if quality.rate:
            rate = ["rate", f"{8 * quality.rate:.0f}bit", "burst", str(_BURST), "latency", f"{1e3 * _LATENCY:.0f}ms"]
            _run(*front, "tc", "qdisc", "add", "dev", device, *parent, "tbf", *rate)


def _run(*words: str) -> None:
    """Raises ``EnvironmentFault`` with what the program says."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise EnvironmentFault("a link of the kernel needs iproute2", where=words[0], found=str(error)) from None
    if done.returncode:
        raise EnvironmentFault(
            "this machine allows no such link", where=" ".join(words), found=done.stderr.strip() or str(done.returncode)
        )
