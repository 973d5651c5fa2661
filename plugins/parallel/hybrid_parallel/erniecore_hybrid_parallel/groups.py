"""Creates the process groups. The only module that uses private parts of Paddle: on gloo each subgroup needs its own store,
because their rendezvous keys have no prefix and would collide.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import numpy as np
import paddle  # noqa: TID253
import paddle.distributed as dist  # noqa: TID253
from paddle.base import core  # noqa: TID253
from paddle.distributed import collective  # noqa: TID253

from erniecore.api import EnvironmentFault
from erniecore.api.launcher import Cluster, free_port
from erniecore_hybrid_parallel.comm import Comm, contact
from erniecore_hybrid_parallel.monitored_barrier import Address, Listener, MonitoredBarrier

#: backends whose collectives have a fixed timeout: 30 s for gloo
IMPATIENT = ("gloo",)
#: environment variable with the name of this node
NODE = "ERNIECORE_NODE"
#: bytes that a rank's address may take
_TEXT = 400

#: number of the first group that is made by hand, above those that Paddle makes
_FIRST_GROUP = 1000

#: seconds between two looks at the store while waiting: the first, and the longest
_SOON, _LATER = 0.0005, 0.02


class World:
    """All processes of the run: creates groups, and provides a barrier that needs no collective.

    Args:
        cluster: this process and the rendezvous address. timeout: seconds that a rank waits at a barrier.

    Attributes:
        barriers: of all groups, for backends with a fixed timeout; for others, ranks synchronize through the store.
    """

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self.rank, self.size, self.timeout = cluster.rank, cluster.world_size, timeout
        self.backend, self.store = "", cast(Any, None)
        self._meetings = self._groups = 0
        self._stores: list[Any] = []  # one for each group: gloo's keys are the same in all groups
        #: groups created so far; ``None`` if this rank is not a member, so that group numbers agree on all ranks
        self._known: dict[tuple[str, tuple[int, ...]], Comm | None] = {}
        self._listener: Listener | None = None
        self.barriers: list[MonitoredBarrier] = []
        self._open(cluster)

    def _open(self, cluster: Cluster) -> None:
        if self.size == 1:
            return
        # the server on libuv aborts its process now and then while ranks connect: once in some 500 stores on a busy machine
        paddle.set_flags({"FLAGS_tcp_store_using_libuv": False})
        if self.rank:
            _await_store(cluster.master, self.timeout)
        try:
            self.store = core.create_or_get_global_tcp_store()
            _send_at_once(cluster.master)
            group = dist.init_parallel_env()
        except (RuntimeError, ValueError, OSError) as error:
            raise EnvironmentFault(
                "the processes of the run did not find each other",
                where=cluster.master,
                found=str(error).strip().splitlines()[-1][-200:],
                fix="is this host and port reachable from every machine, and is every rank running?",
                code="ERN-E022",
            ) from error
        self.backend = dist.get_backend(group).lower()
        _send_at_once(cluster.master)  # rank 0: also to the ranks that came since
        everybody = tuple(range(self.size))
        if self.backend in IMPATIENT:
            listener = Listener(self.rank, _own_address(), os.environ.get(NODE, socket.gethostname()), self.timeout)
            listener.of = [Address(*json.loads(text)) for text in self._told(group, listener.own.to_json())]
            self._listener = listener
        self._known["", everybody] = Comm(everybody, self.rank, group, self.backend, self._barrier(everybody, ""))

    @staticmethod
    def _told(group: Any, text: str) -> list[str]:
        """A short text of every rank."""
        row = np.frombuffer(text.encode().ljust(_TEXT), np.uint8)
        rows: list[Any] = []
        with contact("all_gather"):
            dist.all_gather(rows, paddle.to_tensor(row), group=group)
        return [row.numpy().tobytes().decode().strip() for row in rows]

    def _barrier(self, ranks: tuple[int, ...], purpose: str) -> MonitoredBarrier | None:
        if self._listener is None:
            return None
        self.barriers.append(self._listener.group(ranks, purpose))
        return self.barriers[-1]

    def watch(self, alarm: Callable[[], None]) -> None:
        """Register a function to call before a wait times out."""
        if self._listener is not None:
            self._listener.alarm = alarm

    @property
    def sent(self) -> int:
        """Bytes that this rank has given to the others, in all groups."""
        return sum(comm.sent for comm in self._known.values() if comm is not None)

    @property
    def waited(self) -> float:
        """Seconds that this rank has spent in collectives, in all groups."""
        return sum(comm.waited for comm in self._known.values() if comm is not None)

    @property
    def waiting(self) -> str:
        """What this rank waits for now, and for whom; ``""`` when it does not."""
        found = next((w for call in self.barriers if (w := call.waiting) is not None), None)
        return f"{found[0]} with {self._listener.name(found[1])}" if found and self._listener else ""

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Around a backward pass: of what a ``PyLayer`` raises there, Paddle keeps the text alone, in an ``OSError``. The
        fault of a collective is raised instead."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            found = next((comm.fault for comm in self._known.values() if comm is not None and comm.fault), None)
            if found is None:
                raise
            raise found from error

    def comm(self, groups: Sequence[Sequence[int]], purpose: str = "") -> Comm:
        """The one of ``groups`` that this rank is in; every rank calls this with the same groups, in the same order. The
        same ranks talk in one group per ``purpose``."""
        mine = Comm([self.rank], self.rank, None, self.backend)
        for ranks in groups:
            members = tuple(ranks)
            key = purpose, members
            if key not in self._known and len(members) > 1:
                with contact("creating a group of ranks"):
                    # messages between two name their ends: only what is joined has an order
                    group, here = self._new_group(members, in_order=not purpose), self.rank in members
                if here:
                    self._known[key] = Comm(members, self.rank, group, self.backend, self._barrier(members, purpose))
                else:
                    self._known[key] = None
            mine = self._known.get(key) or mine
        return mine

    def _new_group(self, ranks: tuple[int, ...], in_order: bool) -> Any:
        self._groups += 1
        if self.backend != "gloo" and (not in_order or list(ranks) == sorted(ranks)):
            return dist.new_group(list(ranks))
        if self.rank not in ranks:
            return None
        if self.backend != "gloo":
            return self._in_order(ranks)
        number = _FIRST_GROUP + self._groups
        index, key = ranks.index(self.rank), f"erniecore/group/{self._groups}/{ranks[0]}"
        address = f"{_own_address()}:{free_port('')}" if index == 0 else bytes(self.store.get(key)).decode()
        host, _, port = address.rpartition(":")
        # of one rank, for which no constructor waits: the others are told when it listens
        store = core.TCPStore(host, int(port), index == 0, 1, int(self.timeout))
        if index == 0:
            self.store.set(key, address.encode())
        self._stores.append(store)
        _send_at_once(address)
        process_group = core.ProcessGroupGloo.create(store, index, len(ranks), number)
        group = collective.Group(index, number, list(ranks), pg=process_group, name=f"erniecore-{number}")
        return _registered(group, self.backend)

    def _in_order(self, ranks: tuple[int, ...]) -> Any:
        """As ``dist.new_group``, which sorts ranks: the parts of a tensor are joined in the order of places."""
        number, index = _FIRST_GROUP + self._groups, ranks.index(self.rank)
        name = f"erniecore-{number}"
        made = collective._new_process_group_impl(
            self.backend, self.store, index, len(ranks), name, pg_options=None, group_id=number
        )
        return _registered(collective.Group(index, number, list(ranks), pg=made, name=name), self.backend)

    def meet(self, what: str) -> None:
        """Wait until every rank has come here.

        Raises:
            EnvironmentFault: some did not within the timeout; names them.
        """
        if self.size == 1:
            return
        self._meetings += 1
        self._count(f"at/{self.rank}", 1, what)
        needed, come = self._meetings * self.size, self._count("meet", 1, what)
        started, pause = time.monotonic(), _SOON
        while come < needed:
            if time.monotonic() - started > self.timeout:
                raise self._late(what)
            time.sleep(pause)
            pause = min(pause * 1.5, _LATER)
            come = self._count("meet", 0, what)

    def _count(self, name: str, more: int, what: str) -> int:
        """Add to a counter of the store, which rank 0 keeps; the sum."""
        with contact(what, "rank 0"):
            return int(self.store.add(f"erniecore/{name}", more))

    def _late(self, what: str) -> EnvironmentFault:
        missing = [r for r in range(self.size) if self._count(f"at/{r}", 0, what) < self._meetings]
        return EnvironmentFault(
            f"waited {self.timeout:.0f} s for other processes of the run",
            where=what,
            found=f"missing: rank {', '.join(map(str, missing[:8]))}",
            fix="look at the logs of these ranks; parallel.timeout sets the patience",
            code="ERN-E021",
        )


def _registered(group: Any, backend: str) -> Any:
    """A group that was made by hand, as Paddle finds it."""
    collective._set_group_map_by_name(group.name, group)
    collective._set_group_map(group.id, group)
    collective._set_group_map_backend(group, backend)
    return group


@lru_cache(maxsize=1)
def world_of(cluster: Cluster, timeout: float) -> World:
    """The processes; they meet once, however many runs one process makes."""
    return World(cluster, timeout)


def _await_store(address: str, timeout: float) -> None:
    """Wait until a store's server listens; Paddle's client sleeps for three seconds whenever it comes too early.

    Raises:
        EnvironmentFault: nobody listened within the timeout.
    """
    host, _, port = address.rpartition(":")
    started, pause = time.monotonic(), _SOON
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=max(1.0, min(timeout, 5.0))).close()
            return
        except OSError as error:
            if time.monotonic() - started > timeout:
                raise EnvironmentFault(
                    f"nobody opened the store of the run within {timeout:.0f} s",
                    where=address,
                    found=str(error),
                    fix="is this host and port reachable from every machine, and is the rank that opens it running?",
                    code="ERN-E022",
                ) from error
        time.sleep(pause)
        pause = min(pause * 1.5, 10 * _LATER)


def _send_at_once(address: str) -> None:
    """Set TCP_NODELAY on this process's connections with the store at ``host:port``, as its client or its server.

    Paddle's store writes a command in several pieces; with Nagle's algorithm each waits for the delayed acknowledgment of
    the one before, some 40 ms, and creating a group takes seven commands: 0.3 s instead of 0.02 s.
    """
    port = int(address.rpartition(":")[2])
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:  # closes the duplicate alone
                if port in (connection.getsockname()[1], connection.getpeername()[1]):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, IndexError, TypeError):  # closed since, listening, or no Internet address
            continue


def _own_address() -> str:
    """This machine's address on the way to the master; no packet is sent."""
    host, _, port = os.environ["PADDLE_MASTER"].rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])
