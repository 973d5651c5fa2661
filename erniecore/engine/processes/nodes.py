"""The starters of one run on several machines: they find each other at ``--master``, begin together, tell each other when a
rank has failed and how all ranks ended, and notice when one of them, or the network, is gone. A few lines of JSON over
one connection per machine; what the ranks compute together is not sent here. No paddle.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from erniecore.errors import ConfigError, EnvironmentFault

#: seconds that the starters have to find each other, also before a restart
JOIN = 600.0
#: seconds between two signs of life, and of silence after which a machine counts as lost
ALIVE, SILENCE = 2.0, 15.0
#: variable with the name of this machine, if it shall not be its host name; ranks get it too
NODE = "ERNIECORE_NODE"
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Site:
    """This machine among those of the run. ``master``: ``host:port`` of the first one, where its starter listens."""

    nodes: int = 1
    rank: int = 0
    master: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < max(self.nodes, 1):
            raise ConfigError.at("--node-rank", f"must be below --nodes ({self.nodes}; got {self.rank})")
        host, _, port = self.master.rpartition(":")
        if self.nodes > 1 and not (host and port.isdigit()):
            raise ConfigError.at("--master", f"host:port of the first machine (got {self.master!r})")

    @property
    def host(self) -> str:
        """Of the first machine."""
        return self.master.rpartition(":")[0]

    @property
    def port(self) -> int:
        """Where its starter listens."""
        return int(self.master.rpartition(":")[2])


#: a run on one machine
ALONE = Site()


@dataclass(frozen=True)
class Start:
    """What all begin with: ``host:port`` of the ranks' store, the machines' names in order, ranks on each."""

    master: str
    names: Sequence[str]
    local: int


@dataclass(eq=False)
class Line:
    """A connection to another starter."""

    node: int
    name: str
    socket: socket.socket
    heard: float = field(default_factory=time.monotonic)
    text: bytes = b""
    lost: str = ""

    def send(self, **message: Any) -> None:
        """One message; a connection that breaks is noted."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self.lost = self.lost or str(error)

    def messages(self) -> list[dict[str, Any]]:
        """What has come since the last look; does not wait."""
        found = []
        while not self.lost and select.select([self.socket], [], [], 0)[0]:
            try:
                data = self.socket.recv(1 << 16)
            except OSError as error:
                self.lost = str(error)
                break
            if not data:
                self.lost = "its starter has ended"
                break
            self.heard, self.text = time.monotonic(), self.text + data
        *whole, self.text = self.text.split(b"\n")
        for line in whole:
            with suppress(ValueError):
                found.append(json.loads(line))
        if not self.lost and time.monotonic() - self.heard > SILENCE:
            self.lost = f"silent for {SILENCE:.0f} s"
        return found


class Link:
    """The starters of one attempt. The first machine passes on what the others tell it.

    Attributes:
        failed: a rank of some machine has failed, or a machine is lost.
        ends: how the ranks of all machines ended, once that is known.
        lost: machines that are gone: node -> (name, what was found, when).
    """

    def __init__(self, site: Site, lines: Sequence[Line], start: Start) -> None:
        self.site, self.lines, self.start = site, list(lines), start
        self.failed, self.ends = False, dict[int, list[Any]]()
        self.lost: dict[int, tuple[str, str, float]] = {}
        self.result: list[Any] | None = None
        self._told, self._spoke = False, 0.0

    @property
    def name(self) -> str:
        """Of this machine."""
        return self.start.names[self.site.rank]

    def look(self, failed: bool = False) -> bool:
        """Hear what the others say, tell them whether a rank has failed here; whether one has anywhere."""
        if time.monotonic() - self._spoke > ALIVE:
            self._spoke = time.monotonic()
            self._tell(do="alive")
        for line in self.lines:
            if line.node in self.lost:
                continue
            for message in line.messages():
                self._hear(line, message)
            if line.lost and self.result is None and line.node not in self.ends:
                self.lost[line.node] = (line.name, line.lost, time.time() - (time.monotonic() - line.heard))
        if (failed or self.failed or self.lost) and not self._told:
            self.failed = self._told = True
            self._tell(do="failed")
        return self.failed

    def _tell(self, **message: Any) -> None:
        for line in self.lines:
            line.send(**message)

    def _hear(self, line: Line, message: Mapping[str, Any]) -> None:
        if message["do"] == "failed":
            self.failed = True
        elif message["do"] == "ended":
            self.ends[line.node] = message["ends"]
        elif message["do"] == "result":
            self.result = message["ends"]

    def gathered(self, ends: Sequence[Any]) -> list[Any]:
        """How the ranks of all machines ended, the same on each; waits for those that have not said so and are there."""
        self.ends[self.site.rank] = list(ends)
        if self.site.rank:
            self._tell(do="ended", ends=ends)
            while self.result is None and not self.lost:
                self.look(self.failed)
                time.sleep(0.02)
            return self.result if self.result is not None else [*ends, *self._gone()]
        while any(line.node not in self.ends and line.node not in self.lost for line in self.lines):
            self.look(self.failed)
            time.sleep(0.02)
        everything = [*(end for part in self.ends.values() for end in part), *self._gone()]
        self.result = everything
        self._tell(do="result", ends=everything)
        return everything

    def _gone(self) -> list[Any]:
        """A machine that is lost, as the end of its first rank."""
        found = []
        for node, (name, why, when) in self.lost.items():
            error = EnvironmentFault(
                f"lost contact with {name}",
                where=f"machine {node} of {self.site.nodes}",
                found=why,
                fix="look at that machine and at the network to it; the same command continues on all machines",
                code="ERN-E025",
            )
            record = {"class": "EnvironmentFault", "fields": error.fields(), "exit": int(error.exit_code)}
            found.append({"rank": -1 - node, "status": 1, "time": when, "record": record})
        return found

    def close(self) -> None:
        """End the connections; what was said arrives."""
        for line in self.lines:
            with suppress(OSError):
                line.socket.shutdown(socket.SHUT_WR)
            line.socket.close()


class Meeting:
    """Where the starters find each other, attempt after attempt.

    Args:
        tell: told whom it waits for.
    """

    def __init__(self, site: Site, tell: Callable[[str], None]) -> None:
        self.site, self._tell = site, tell
        self.name = machine_name()
        self._listener: socket.socket | None = None
        if site.nodes > 1 and not site.rank:
            self._listener = _listen(site)

    def join(self, local: int, store: Callable[[], int]) -> Link:
        """Wait until all starters are here.

        Args:
            local: ranks on this machine, as many as on each. store: a free port for the ranks' store.
        Raises:
            EnvironmentFault: some did not come; names them.
        """
        return self._gather(local, store()) if self._listener is not None else self._enter(local)

    def close(self) -> None:
        """Nobody else may come."""
        if self._listener is not None:
            self._listener.close()

    def _gather(self, local: int, port: int) -> Link:
        assert self._listener is not None
        lines: dict[int, Line] = {}
        end = time.monotonic() + JOIN
        self._tell(f"waiting at {self.site.master} for {self.site.nodes - 1} more machine(s)")
        while len(lines) < self.site.nodes - 1:
            self._listener.settimeout(max(0.01, end - time.monotonic()))
            try:
                peer, _ = self._listener.accept()
                line = _hello(peer, self.site, local)
            except (OSError, ValueError, KeyError) as error:
                if time.monotonic() < end:
                    continue  # a stranger, or one that has gone again
                missing = [str(n) for n in range(1, self.site.nodes) if n not in lines]
                raise self._alone(f"missing: machine {', '.join(missing)}") from error
            lines[line.node] = line
        names = unique([self.name, *(lines[n].name for n in range(1, self.site.nodes))])
        start = Start(f"{self.site.host}:{port}", names, local)
        for line in lines.values():
            line.name, line.heard = names[line.node], time.monotonic()
            line.send(do="start", master=start.master, names=names)
        return Link(self.site, list(lines.values()), start)

    def _enter(self, local: int) -> Link:
        end, found = time.monotonic() + JOIN, ""
        while time.monotonic() < end:
            try:
                peer = socket.create_connection((self.site.host, self.site.port), timeout=5.0)
            except OSError as error:
                found = str(error)
                time.sleep(0.5)
                continue
            try:
                return self._welcomed(peer, local, end)
            except (OSError, ValueError) as error:
                peer.close()
                found = str(error)
                if isinstance(error, ConfigError):
                    raise
                time.sleep(0.5)
        raise self._alone(found)

    def _welcomed(self, peer: socket.socket, local: int, end: float) -> Link:
        """Say who this is, and wait until the first machine begins."""
        line = Line(0, "", peer)
        line.send(do="hello", node=self.site.rank, name=self.name, local=local, nodes=self.site.nodes)
        peer.settimeout(max(1.0, end - time.monotonic()))
        said = json.loads(_first_line(peer))
        if said["do"] == "refused":
            raise ConfigError.at(said["key"], said["message"])
        line.name, line.heard = said["names"][0], time.monotonic()
        return Link(self.site, [line], Start(said["master"], said["names"], local))

    def _alone(self, found: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"the machines of the run did not find each other within {JOIN:.0f} s",
            where=self.site.master,
            found=found,
            fix="does --master name the first machine, is the port open, and was the command started on every machine?",
            code="ERN-E022",
        )


def _listen(site: Site) -> socket.socket:
    try:
        return socket.create_server(("", site.port), backlog=1024)
    except OSError as error:
        fix = "choose another port with --master"
        raise EnvironmentFault("the port is taken", where=site.master, found=str(error), fix=fix) from error


def _hello(peer: socket.socket, site: Site, local: int) -> Line:
    """The first words of a starter; one that was started otherwise is refused."""
    peer.settimeout(5.0)
    try:
        said = json.loads(_first_line(peer))
        line = Line(int(said["node"]), str(said["name"]), peer)
        for key, theirs, ours in (("--nodes", said["nodes"], site.nodes), ("--nproc", said["local"], local)):
            if theirs != ours:
                line.send(do="refused", key=key, message=f"{theirs} here, but {ours} on the first machine")
                raise ValueError("started otherwise")
    except BaseException:
        peer.close()
        raise
    return line


def _first_line(peer: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        byte = peer.recv(1)
        if not byte or len(text) > 1 << 16:
            raise ValueError("no starter of this run")
        text += byte
    return text


def machine_name() -> str:
    """Of this machine, as its user or its system calls it."""
    return os.environ.get(NODE) or socket.gethostname()


def unique(names: Sequence[str]) -> list[str]:
    """Names of which several are the same get their number."""
    return [f"{name}-{i}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def interface_to(host: str) -> str:
    """The network interface by which this machine reaches ``host``; ``""`` where that cannot be found out."""
    if not sys.platform.startswith("linux"):
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 9))
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                if socket.inet_ntoa(packed[20:24]) == own:
                    return name
    return ""
