"""The processes of a server: started, watched, started again when they are lost, and changed in their roles.

Roles change in three steps. *Drain*: nothing new goes to the process, and what it has is finished. *Commit*: with the next
epoch, the process takes the role; it refuses where anything is left, and whatever was sent for an earlier epoch from then
on. *Reopen*: it gets work. A process that does not finish in time, or whose role would be left without any, keeps its own.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from erniecore_generation.engine.prefix import BLOCK

from erniecore.api import EnvironmentFault, Json, UsageError
from erniecore.api.command import did_you_mean, note
from erniecore.api.launcher import parent_variables
from erniecore_disaggregated.channel import Channel, ChannelClosed
from erniecore_disaggregated.config import DisaggregatedConfig
from erniecore_disaggregated.policy import PrefixIndex, Role, WorkerState, may_switch

#: seconds in which restarts are counted
_RESTART_WINDOW = 600.0
_STOP_SECONDS = 5.0
_PING_SECONDS = 0.25


class Listener(Protocol):
    """Who hears of the processes. Called with the cluster's lock."""

    def message(self, member: Member, head: Json) -> None:
        """A process has said something about a request."""
        ...

    def lost(self, member: Member) -> None:
        """A process is gone, and everything that it had."""
        ...


@dataclass(eq=False, slots=True)
class Member:
    """A process.

    Attributes:
        state: for the policies. calls: keys of requests that it has a part of. told: the last ``pong``.
        phase: of a change of role, as the process has confirmed it.
    """

    state: WorkerState
    process: subprocess.Popen[bytes] | None = None
    channel: Channel | None = None
    address: Any = None
    calls: set[str] = field(default_factory=set)
    told: Json = field(default_factory=dict)
    replied: float = 0.0
    pinged: float = 0.0
    phase: str = ""
    starts: deque[float] = field(default_factory=deque)
    description: Json = field(default_factory=dict)
    fault: str = ""

    @property
    def name(self) -> str:
        """The name of the process."""
        return self.state.name

    def send(self, head: Json, file: int = -1) -> None:
        """Tell the process something; one that is gone hears nothing. ``file`` is closed when it is sent."""
        if self.channel is not None:
            self.channel.send(head, file=file)
        elif file >= 0:
            os.close(file)


class Cluster:
    """All processes of a server.

    Attributes:
        lock: over everything here and what the listener has. epoch: of the last change of role.
        switches: changes of roles that were made, refused and not finished, by outcome.
    """

    def __init__(self, settings: DisaggregatedConfig, directory: Path, listener: Listener) -> None:
        self.settings, self._directory, self._listener = settings, directory, listener
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.epoch = 0
        self.switches = {"done": 0, "refused": 0, "timeout": 0, "lost": 0}
        self.restarts = self.expired = 0
        self._secret = secrets.token_hex(24)
        self._stopping = False
        self._switching = threading.Lock()
        self.members: dict[str, Member] = {}
        counts: list[tuple[Role, int]] = [("prefill", settings.prefill), ("decode", settings.decode)]
        for number, role in enumerate([role for role, count in counts for _ in range(count)]):
            self.epoch += 1
            state = WorkerState(f"worker-{number}", role, self.epoch, rows=settings.rows, prefix=PrefixIndex(BLOCK))
            self.members[state.name] = Member(state)

    @property
    def states(self) -> list[WorkerState]:
        """What the policies decide over."""
        return [member.state for member in self.members.values()]

    def start(self) -> Json:
        """Start all; returns, when they take requests, what one of them says of the model.

        Raises:
            EnvironmentFault: one did not start; its own error is in the message.
        """
        with self.lock:
            for member in self.members.values():
                self._spawn(member)
            self.changed.wait_for(
                lambda: (
                    all(m.state.status != "starting" for m in self.members.values())
                    or any(m.state.status == "lost" for m in self.members.values())
                )
            )
            for member in self.members.values():
                if member.state.status == "lost":
                    raise EnvironmentFault(
                        "a process of the server did not start", where=member.name, found=member.fault
                    )
            return next(iter(self.members.values())).description

    def stop(self) -> None:
        """End all processes, by force those that take too long."""
        with self.lock:
            self._stopping = True
            for member in self.members.values():
                member.send({"type": "stop"})
        until = time.monotonic() + _STOP_SECONDS
        for process in [m.process for m in self.members.values() if m.process is not None]:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for channel in [m.channel for m in self.members.values() if m.channel is not None]:
            channel.close()

    def look(self, now: float) -> None:
        """Ask all for news, kill those that have none for too long, start those again that are lost. With the lock."""
        seconds = self.settings.health_seconds
        for member in self.members.values():
            if self._stopping:
                return
            if member.state.status == "lost":
                self._restart(member, now)
            elif member.state.status != "starting" and now - member.pinged > min(_PING_SECONDS, seconds / 4):
                member.pinged = now
                member.send({"type": "ping"})
            hung = member.state.status != "starting" and now - member.replied > seconds
            if member.process is not None and (hung or member.told.get("engine", {}).get("state") == "failed"):
                self.kill(member, f"no reply for {seconds:g} s" if hung else member.told["engine"]["error"])

    def kill(self, member: Member, reason: str) -> None:
        """End a process that is of no use; it is started again."""
        if member.process is not None and member.state.status != "lost":
            note(f"{member.name} is killed: {reason}")
            member.process.kill()
            self._gone(member, reason)

    def switch(self, name: str, role: Role) -> Json:
        """Change the role of a process; waits for it. Returns its name, role, epoch and the seconds that it took.

        Raises:
            UsageError: no such process, the role that it has, the last of its role, or one that was lost or did not finish
                in time: it keeps its role.
        """
        began = time.monotonic()
        with self._switching, self.lock:
            member = self.members.get(name)
            if member is None:
                raise UsageError("no such process", where="worker", found=name, fix=did_you_mean(name, self.members))
            self._check_switch(member, role)
            process = member.process
            member.state.status, member.phase = "draining", ""
            member.send({"type": "drain"})
            self._step(member, process, "drained")
            try:
                self._check_switch(member, role)  # others may be gone meanwhile
            except UsageError:
                self._reopen(member)
                raise
            self.epoch += 1
            member.send({"type": "commit", "role": role, "epoch": self.epoch})
            self._step(member, process, "committed")
            member.state.role, member.state.epoch = role, self.epoch
            self._reopen(member)
            self.switches["done"] += 1
            return {"worker": name, "role": role, "epoch": self.epoch, "seconds": round(time.monotonic() - began, 3)}

    def _check_switch(self, member: Member, role: Role) -> None:
        reason = "it has this role" if member.state.role == role else may_switch(self.states, member.name)
        if reason:
            self.switches["refused"] += 1
            raise UsageError("the role stays", where=member.name, found=reason)

    def _step(self, member: Member, process: Any, phase: str) -> None:
        """Wait until the process has confirmed a step. Raises ``UsageError`` where it does not."""
        seconds = self.settings.drain_role_seconds
        self.changed.wait_for(
            lambda: (
                member.process is not process
                or (member.phase == phase and (phase != "drained" or not member.calls))
                or member.phase == "busy"
                or self._stopping
            ),
            seconds,
        )
        if member.process is not process or self._stopping:
            self.switches["lost"] += 1
            raise UsageError("the role stays", where=member.name, found="the process was lost")
        if member.phase != phase:
            self.switches["timeout"] += 1
            left = f"{len(member.calls)} requests are left after {seconds:g} s"
            self._reopen(member)
            raise UsageError("the role stays", where=member.name, found=left)

    def _reopen(self, member: Member) -> None:
        member.send({"type": "reopen"})
        if member.state.status == "draining":
            member.state.status = "open"
        self.changed.notify_all()

    def _spawn(self, member: Member) -> None:
        ours, theirs = socket.socketpair()
        variables = {**_environment(self.settings.threads), **parent_variables()}
        argv = [sys.executable, "-m", "erniecore_disaggregated.worker", str(theirs.fileno())]
        member.process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], env=variables, stdin=subprocess.DEVNULL)
        theirs.close()
        channel = member.channel = Channel(ours, seconds=60.0)
        member.state.status, member.told, member.phase, member.fault = "starting", {}, "", ""
        member.state.prefix.clear()
        channel.send(
            {
                "type": "configure", "settings": self.settings.model_dump(), "directory": str(self._directory),
                "secret": self._secret, "role": member.state.role, "epoch": member.state.epoch,
            }
        )  # fmt: skip
        threading.Thread(target=self._hear, args=(member, channel), name="erniecore-member", daemon=True).start()

    def _restart(self, member: Member, now: float) -> None:
        while member.starts and now - member.starts[0] > _RESTART_WINDOW:
            member.starts.popleft()
        if len(member.starts) < self.settings.restarts:
            member.starts.append(now)
            self.restarts += 1
            self.epoch += 1
            member.state.epoch = self.epoch
            note(f"{member.name} is started again for {member.state.role}")
            self._spawn(member)

    def _hear(self, member: Member, channel: Channel) -> None:
        try:
            while True:
                head = channel.receive().head
                with self.lock:
                    if member.channel is channel:
                        self._take(member, head)
        except ChannelClosed as error:
            with self.lock:
                if member.channel is channel:
                    self._gone(member, member.fault or str(error))

    def _take(self, member: Member, head: Json) -> None:
        kind = head["type"]
        if kind == "ready":
            member.address, member.description = head["address"], head
            member.state.status, member.replied = "open", time.monotonic()
        elif kind == "broken":
            member.fault = head["reason"]
            self._gone(member, member.fault)
        elif kind == "pong":
            self.expired += max(0, head["expired"] - member.told.get("expired", 0))
            member.told, member.replied = head, time.monotonic()
        elif kind in ("drained", "committed", "busy", "opened"):
            member.phase = kind
        else:
            self._listener.message(member, head)
        self.changed.notify_all()

    def _gone(self, member: Member, reason: str) -> None:
        """A process is of no use any more: what it had begins again elsewhere."""
        process, channel = member.process, member.channel
        member.process, member.channel, member.fault = None, None, reason
        member.state.status = "lost"
        if channel is not None:
            channel.close()
        if process is not None:
            if not self._stopping:
                note(f"{member.name} ({member.state.role}) is lost: {reason}")
            process.kill()
            threading.Thread(target=process.wait, name="erniecore-reaper", daemon=True).start()
        self._listener.lost(member)
        member.calls.clear()
        state = member.state
        state.prompts = state.queued_tokens = state.completions = state.kv_tokens = 0
        self.changed.notify_all()


def _environment(threads: int) -> dict[str, str]:
    return {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
