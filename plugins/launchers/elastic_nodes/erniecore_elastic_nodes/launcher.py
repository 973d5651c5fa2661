"""The launcher ``elastic-nodes``. The first machine leads: it starts the ranks of all machines that are there, and starts them
again with another layout when a machine or a rank is lost, when a machine joins and when one is to leave. No paddle here.

A *start* is the time between two such changes. It ends in one of four ways (``generation.outcome``): all ranks are done; all
have saved after the same step, because a machine joins or leaves or the user wants an end; a rank or a machine is lost, and the
others are killed; or it failed with an error that would come again, which ends the run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from erniecore_nodes.agents import HEARTBEAT, Node, heard
from erniecore_nodes.channel import Channel, read_secret
from erniecore_nodes.rendezvous import listen

from erniecore.api import ConfigError, EnvironmentFault, Exit
from erniecore.api.launcher import (
    Launcher,
    RankExit,
    RankJob,
    RunningRanks,
    await_ranks,
    free_port,
    newest,
    node_name,
    planned_job,
    with_overrides,
)
from erniecore_elastic_nodes.config import ElasticNodesConfig
from erniecore_elastic_nodes.events import Journal
from erniecore_elastic_nodes.generation import Order, OwnRanks, as_messages, outcome, run_order
from erniecore_elastic_nodes.layouts import Chosen, Layouts
from erniecore_elastic_nodes.members import Lobby, Member, join
from erniecore_elastic_nodes.memory import forget, give, inventory, root_of
from erniecore_elastic_nodes.rescue import Rescue

#: seconds between two looks while nothing runs here, and that other machines' ranks have once those of this one have ended
_PAUSE, FINISH = 0.05, 60.0
#: exit codes of ranks that did what they were to do
_GOOD = (int(Exit.OK), int(Exit.PREEMPTED))


class ElasticLauncher(Launcher):
    """A launcher for one of several machines that come and go."""

    def __init__(self, config: ElasticNodesConfig) -> None:
        """Raises ``ConfigError`` for impossible numbers, or where a secret is needed."""
        most = config.max_nodes or config.nodes
        if not config.min_nodes <= config.nodes <= most:
            found = f"min_nodes {config.min_nodes}, nodes {config.nodes}, max_nodes {most}"
            raise ConfigError.at("launcher.nodes", f"min_nodes <= nodes <= max_nodes (got {found})")
        self._notes: list[str] = []
        self.config, self.secret = config, read_secret(config.secret_file, os.environ, self._notes.append)
        self.first = Node(max(config.nodes, 2), 0, config.master, self.secret, config.insecure)
        self.ranks_per_node = config.nproc
        # a machine that joins has no number; its locks in the run directory need one
        self.node_rank = 1 + os.getpid() if config.join else 0
        self._lobby: Lobby | None = None
        self._note: Callable[[str], None] = self._notes.append

    def open(self, note: Callable[[str], None]) -> None:
        """Listen on the first machine. Raises ``EnvironmentFault`` if the port is taken."""
        for text in self._notes:
            note(text)
        self._note = note
        if not self.config.join:
            self._lobby = Lobby(listen(self.first), self.secret, note)

    def start(self, job: RankJob) -> RunningRanks:
        """The ranks of this machine, now and after every change. Raises ``EnvironmentFault`` if this machine cannot join."""
        if self._lobby is not None:
            return Leading(self.config, job, self._lobby, self.first.host, self._note)
        address, patience = (self.first.host, self.first.port), self.config.patience
        channel = join(address, self.secret, node_name(), job.ranks_per_node, patience)
        self._note(f"joined the run that {self.config.master} leads")
        return Following(job, channel, self.first.host)

    def close(self) -> None:
        """Nobody else may join."""
        if self._lobby is not None:
            self._lobby.close()


class Following(RunningRanks):
    """The ranks of a machine that has joined: it starts and ends them as the first one says."""

    def __init__(self, job: RankJob, channel: Channel, host: str) -> None:
        self.job, self.channel, self.host = job, channel, host
        self._ranks: OwnRanks | None = None
        self._end: list[RankExit] | None = None
        self._order: Order | None = None
        self._kill, self._spoke = False, 0.0
        self._root = root_of(job.out, node_name())

    def wait(self) -> Sequence[RankExit]:
        """Until the first machine says that the run has ended, or is gone, or this machine has left."""
        while self._end is None:
            self._look(False)
            # what was said last counts, also where the connection has ended since
            if self._end is None and self.channel.lost:
                return [self._gone()]
            if self._order is None:
                time.sleep(_PAUSE)
                continue
            order, self._order, self._kill = self._order, None, False
            exits = run_order(self.job, order, node_name(), self.host, self._look, self._begun)
            self._ranks = None
            self.channel.send(do="ended", number=order.number, ends=as_messages(exits))
        return self._end

    def _begun(self, ranks: OwnRanks) -> None:
        self._ranks = ranks

    def _look(self, failed: bool) -> bool:
        """Hear the first machine; whether the ranks are to be killed."""
        messages = heard(self.channel)  # before anything is sent: a connection that breaks is not read from
        if time.monotonic() - self._spoke > HEARTBEAT:
            self._spoke = time.monotonic()
            self.channel.send(do="alive")
        for message in messages:
            if message["do"] == "start":
                self._order = Order.of(message)
            elif message["do"] == "kill":
                self._kill = True
            elif message["do"] == "inventory":
                self.channel.send(do="copies", rows=inventory(self._root))
            elif message["do"] == "give":
                self._give(message)
            elif message["do"] == "end":
                self._end = [RankExit(**fields) for fields in message["ends"]]
        return self._kill or bool(self.channel.lost) or self._end is not None

    def _give(self, message: Mapping[str, Any]) -> None:
        """Files in this machine's memory become part of a checkpoint."""
        try:
            give(self._root, int(message["step"]), message["files"], Path(message["directory"]))
            self.channel.send(do="gave", fault="")
        except (OSError, KeyError) as error:
            self.channel.send(do="gave", fault=f"{type(error).__name__}: {error}")

    def signal(self, number: int) -> None:
        """This machine leaves: its ranks stop after a step, and with them all others; the run goes on without it."""
        if number in (signal.SIGTERM, signal.SIGINT):
            self.channel.send(do="leave")
        elif self._ranks is not None:
            self._ranks.signal(number)

    def close(self) -> None:
        """Kill what still runs, and leave."""
        if self._ranks is not None:
            self._ranks.close()
        forget(self._root)
        self.channel.close()

    def _gone(self) -> RankExit:
        error = EnvironmentFault(
            "lost contact with the first machine, which leads the run",
            where=self.host,
            found=self.channel.lost,
            fix="the same commands continue the run; start the first machine's first",
            code="ERN-E025",
        )
        record = {"class": "EnvironmentFault", "fields": error.fields(), "exit": int(error.exit_code)}
        return RankExit(-1, 1, time.time(), record)


def accepted(job: RankJob, settings: Sequence[str]) -> bool:
    """Whether two processes of ``job`` with these further settings pass the checks before a run starts."""
    try:
        planned_job(with_overrides(job, settings, resume=False), 2)
    except ConfigError:
        return False
    return True


class Leading(RunningRanks):
    """The first machine: its own ranks, and what all do together."""

    def __init__(
        self, config: ElasticNodesConfig, job: RankJob, lobby: Lobby, host: str, note: Callable[[str], None]
    ) -> None:
        self.config, self.job, self.lobby, self.host, self.note = config, job, lobby, host, note
        run, planned = planned_job(job, config.nodes * job.ranks_per_node), config.layout == "planned"
        self.layouts = Layouts(run, planned, config.cluster, partial(accepted, job))
        self.journal = Journal(job.out)
        self.rescue = Rescue(job.out, lobby, self.note, self.journal)
        self._ranks: OwnRanks | None = None
        self._taking_part: list[Member] = []
        self._number, self._failures = 0, 0
        # of this start: why all ranks shall stop after a step, and were told to; what was lost
        self._wish, self._change, self._lost = "", "", ""
        self._asked = False  # the user wants an end
        self._next_look = 0.0
        self._joined = 0.0  # when the first of those that wait has joined

    def wait(self) -> Sequence[RankExit]:
        """Start after start, until the run is done or cannot go on."""
        wanted = self.config.nodes
        while True:
            self._assemble(wanted)
            before = newest(self.job.out)
            exits = self._one_start()
            end = outcome(exits)
            if self._lost and end != "done":
                end = "lost"
            for member in [member for member in self.lobby.members if member.lost]:
                self.lobby.dismiss(member)
            if end == "lost":
                self.rescue.run()  # before anybody leaves: it may have copies
                self._failures = 1 if newest(self.job.out) != before else self._failures + 1
            if end in ("done", "failed") or self._asked or self._failures > self.config.restarts:
                self.lobby.tell_all(do="end", ends=as_messages(exits))
                return exits
            for member in [member for member in self.lobby.members if member.leaving]:
                member.channel.send(do="end", ends=as_messages([ended for ended in exits if ended.status >= 0]))
                self.lobby.dismiss(member)
            wanted = self.config.min_nodes

    # ---- between two starts
    def _assemble(self, wanted: int) -> None:
        """Wait until so many machines are there; those that are lost while we wait are let go.

        Raises:
            EnvironmentFault: they did not come.
        """
        end, told = time.monotonic() + self.config.patience, False
        while True:
            self.lobby.look()
            for member in [member for member in self.lobby.members if member.lost or member.leaving]:
                self.lobby.dismiss(member)
            if 1 + len(self.lobby.members) >= wanted:
                return
            if not told:
                told = True
                self.note(f"waiting at {self.config.master} for {wanted - 1 - len(self.lobby.members)} more machine(s)")
            if time.monotonic() > end:
                raise EnvironmentFault(
                    f"fewer than {wanted} machines for {self.config.patience:.0f} s",
                    where=self.config.master,
                    found=f"{1 + len(self.lobby.members)}",
                    fix="start the command with launcher.join=true on more machines, or lower launcher.min_nodes",
                    code="ERN-E022",
                )
            time.sleep(_PAUSE)

    def _one_start(self) -> list[RankExit]:
        """All machines that are there, from one change to the next; how the ranks ended, those of lost machines too."""
        most = self.config.max_nodes or self.config.nodes
        members = self.lobby.members[: most - 1]
        offered = [self.job.ranks_per_node, *(member.ranks for member in members)]
        chosen = self.layouts.of(sum(offered), self.note)
        await_ranks(self.job.out, range(sum(offered)), self.note)
        self._number += 1
        self._wish, self._change, self._lost, self._joined = "", "", "", 0.0
        self.journal.mark()
        orders = self._orders(chosen, offered)
        self._taking_part = members
        for member, order in zip(members, orders[1:], strict=True):
            member.ends = None
            member.channel.send(**order.message())
        self._tell(chosen, members)
        own = run_order(self.job, orders[0], node_name(), self.host, self._look, self._begun)
        self._ranks = None
        patience = time.monotonic() + FINISH
        while any(member.ends is None and not member.lost for member in members):
            late = time.monotonic() > patience
            self._look(late or any(ended.status not in _GOOD for ended in own))
            time.sleep(_PAUSE)
        ends = [RankExit(**fields) for member in members for fields in member.ends or ()]
        gone = [self._gone(member) for member in members if member.lost and member.ends is None]
        return [*own, *ends, *gone]

    def _orders(self, chosen: Chosen, offered: Sequence[int]) -> list[Order]:
        world, left = chosen.layout.size, chosen.layout.size
        master = f"{self.host}:{free_port('' if not self.host.startswith('127.') else '127.0.0.1')}"
        counts = []
        for ranks in offered:
            counts.append(min(ranks, left))
            left -= counts[-1]
        nodes = sum(count > 0 for count in counts)
        resume = self._number > 1
        return [
            Order(self._number, master, chosen.overrides, sum(counts[:i]), count, world, nodes, resume)
            for i, count in enumerate(counts)
        ]

    def _tell(self, chosen: Chosen, members: Sequence[Member]) -> None:
        names = [node_name(), *(member.name for member in members)]
        if self._number > 1:
            self.note(f"start {self._number} on {len(names)} machine(s): {chosen.text}")
        self.journal.write(
            "elastic",
            start=self._number,
            machines=names,
            ranks=chosen.layout.size,
            layout=chosen.text,
            settings=[*chosen.overrides],
        )

    # ---- while ranks run
    def _begun(self, ranks: OwnRanks) -> None:
        self._ranks = ranks

    def _look(self, failed: bool) -> bool:
        """Let machines in and hear them; whether the ranks of this machine are to be killed."""
        for member, message in self.lobby.look():
            if message["do"] == "ended" and message.get("number") == self._number:
                member.ends = message["ends"]
                failed = failed or any(ended["status"] not in _GOOD for ended in message["ends"])
            elif message["do"] == "leave":
                member.leaving = True
                self._wish = f"{member.name} leaves"
        lost = [member.name for member in self._taking_part if member.lost and member.ends is None]
        if (failed or lost) and not self._lost:
            self._lost = f"lost {', '.join(lost)}" if lost else "a rank ended"
            self.note(f"{self._lost}: all ranks start again from the newest checkpoint")
            self.journal.write("warning", kind="elastic", message=self._lost)
            self.lobby.tell_all(do="kill")
        self._take_in()
        self._exclude()
        self._stop_when_due()
        return bool(self._lost)

    def _take_in(self) -> None:
        """Machines that have joined meanwhile, once no further one came for a while."""
        most = self.config.max_nodes or self.config.nodes
        waiting = [
            member for member in self.lobby.members[: most - 1] if member not in self._taking_part and not member.lost
        ]
        if not waiting or self._wish or self._lost:
            return
        self._joined = self._joined or time.monotonic()
        if time.monotonic() - self._joined >= self.config.settle:
            self._wish = f"{', '.join(member.name for member in waiting)} joined"

    def _exclude(self) -> None:
        """Machines that are too slow leave, as long as enough are left; looked for once in a while."""
        if not self.config.exclude_slow or self._wish or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + HEARTBEAT
        slow = self.journal.slow()
        spare = 1 + len(self._taking_part) - self.config.min_nodes
        for member in [member for member in self._taking_part if member.name in slow][: max(spare, 0)]:
            member.leaving = True
            self._wish = f"{member.name} is slow and leaves"

    def _stop_when_due(self) -> None:
        """All ranks save after the same step, on which they agree. Not before their first one: a rank that is stopped while it
        starts leaves the others waiting for it."""
        if self._wish and not self._change and self._ranks is not None and self.journal.trains():
            self._change = self._wish
            self.note(f"{self._wish}: all ranks save and start again")
            self._ranks.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """The user's wish, for the ranks of all machines: they agree by themselves."""
        self._asked = self._asked or number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
        if self._ranks is not None:
            self._ranks.signal(number)

    def close(self) -> None:
        """Kill what still runs here; the others notice that this machine is gone."""
        if self._ranks is not None:
            self._ranks.close()
        forget(self.rescue.root)

    def _gone(self, member: Member) -> RankExit:
        error = EnvironmentFault(
            f"lost contact with {member.name}", where=self.config.master, found=member.lost, code="ERN-E025"
        )
        record = {"class": "EnvironmentFault", "fields": error.fields(), "exit": int(error.exit_code)}
        return RankExit(-1 - member.number, 1, time.time(), record)
