"""What a launcher costs as a function of the number of ranks, without models: seconds until all agents of the launchers ``nodes``
and ``elastic-nodes`` have found each other, seconds from there to a start that every rank has heard of, and memory of an agent.

    python -m benchmarks.rendezvous
    python -m benchmarks.rendezvous 16 64 256

Every agent is a process of its own on this machine, and stands for one rank: a machine with eight ranks needs an eighth of them.
They are forks of one process, so that memory is counted as what is not shared (``Private_Dirty``) beside the resident size.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from erniecore_elastic_nodes.members import Lobby, join
from erniecore_nodes.agents import Node, heard
from erniecore_nodes.rendezvous import Rendezvous, listen

from erniecore.api.launcher import free_port

SECRET = b"a secret of a benchmark on loopback"
COUNTS = (4, 16, 64, 128, 256)


def quiet(text: str) -> None:
    """Drop what a launcher tells its user."""


def memory() -> tuple[int, int]:
    """(private, resident) KiB of this process."""
    found = {"Private_Dirty": 0, "Rss": 0}
    with open("/proc/self/smaps_rollup", encoding="utf-8") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0])
    return found["Private_Dirty"], found["Rss"]


def nodes_agent(rank: int, count: int, port: int, said: Connection) -> None:
    """One machine of the launcher ``nodes``: from its connection to the start of all."""
    node = Node(count, rank, f"127.0.0.1:{port}", SECRET)
    rendezvous = Rendezvous(node, quiet)
    said.send("here")
    said.recv()
    started = time.perf_counter()
    group = rendezvous.join(1, free_port)
    said.send((time.perf_counter() - started, 0.0, memory()))
    said.recv()
    group.close()
    rendezvous.close()


def elastic_agent(rank: int, count: int, port: int, said: Connection) -> None:
    """One machine of ``elastic-nodes``: joins; the first one tells all to start when they are there."""
    lobby = Lobby(listen(Node(2, 0, f"127.0.0.1:{port}", SECRET)), SECRET, quiet) if rank == 0 else None
    said.send("here")
    said.recv()
    started = time.perf_counter()
    if lobby is not None:
        while len(lobby.members) < count - 1:
            lobby.look()
            time.sleep(0.001)
        joined = time.perf_counter() - started
        lobby.tell_all(do="start")
        answered = 0
        while answered < count - 1:
            answered += sum(message["do"] == "ended" for _, message in lobby.look())
            time.sleep(0.001)
        said.send((joined, time.perf_counter() - started - joined, memory()))
        said.recv()
        lobby.close()
        return
    channel = join(("127.0.0.1", port), SECRET, f"machine-{rank}", 1, 120.0)
    while not any(message["do"] == "start" for message in heard(channel)):
        time.sleep(0.001)
    channel.send(do="ended")
    said.send((0.0, 0.0, memory()))
    said.recv()
    channel.close()


def measure(agent: Callable[..., None], count: int) -> dict[str, Any]:
    """All agents of one run: seconds of the first one, memory of it and of the others in the median."""
    context, port = multiprocessing.get_context("fork"), free_port()
    pipes, processes = [], []
    for rank in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=agent, args=(rank, count, port, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
        if rank == 0:
            assert ours.recv() == "here"  # it listens
    for pipe in pipes[1:]:
        assert pipe.recv() == "here"
    for pipe in pipes:
        pipe.send("go")
    found = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send("end")
    for process in processes:
        process.join()
    others = sorted(row[2] for row in found[1:])
    return {"joined": found[0][0], "started": found[0][1], "first": found[0][2], "other": others[len(others) // 2]}


def main(words: list[str]) -> int:
    """Measure both launchers for each number of ranks, and print the table."""
    print(
        "| launcher | ranks | found each other, s | start heard by all, s | first agent, MiB private (resident) | others |"
    )
    print("|---|---|---|---|---|---|")
    for name, agent in (("nodes", nodes_agent), ("elastic-nodes", elastic_agent)):
        for count in map(int, words or map(str, COUNTS)):
            found = measure(agent, count)
            first, other = (f"{found[key][0] / 1024:.1f} ({found[key][1] / 1024:.1f})" for key in ("first", "other"))
            heard_by = f"{found['started']:.2f}" if found["started"] else "with it"
            print(f"| {name} | {count} | {found['joined']:.2f} | {heard_by} | {first} | {other} |", flush=True)
    print(f"\n{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
