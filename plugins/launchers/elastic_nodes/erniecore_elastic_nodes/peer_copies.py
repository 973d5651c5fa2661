"""The callback ``peer-copies``: after every step, or every k-th, the state of the run is copied into the memory of the machines,
each part of it on two of them. Light; runs on every rank.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from erniecore.api import CheckpointError, Field, Plugin, Section, hookimpl
from erniecore.api.launcher import node_name

if TYPE_CHECKING:
    from erniecore.api.callback import RunView
    from erniecore_elastic_nodes.peers import PeerFiles


class PeerCopiesConfig(Section):
    """How often the state is copied. `/dev/shm` needs room for four times a rank's part of the state."""

    every: int = Field(1, ge=1, description="Steps between two copies: so many steps are lost at most.")


class PeerCopies(Plugin):
    """Copies in memory, from which the launcher `elastic-nodes` makes a checkpoint when a machine is lost."""

    kind = "callback"
    name = "peer-copies"
    summary = "copies the state into the memory of two machines, so that a lost one costs one step"
    Config = PeerCopiesConfig

    @hookimpl
    def ernie_step_end(self, run: RunView, step: int) -> None:
        """All ranks together. A copy that fails ends the run: what the user relies on is not there."""
        config: PeerCopiesConfig = run.settings.callbacks[self.name]
        if step % config.every == 0 and step < run.total_steps:
            _copies(run).make(run, step)


#: of the runs of this process
_known: WeakKeyDictionary[RunView, Copies] = WeakKeyDictionary()


def _copies(run: RunView) -> Copies:
    if run not in _known:
        _known[run] = Copies(run)
    return _known[run]


class Copies:
    """The copies of one rank. Every rank makes one of these, together with the others."""

    def __init__(self, run: RunView) -> None:
        from erniecore_elastic_nodes.memory import forget, make_root, root_of
        from erniecore_elastic_nodes.peers import PeerFiles, neighbor

        self.root, self.rank = root_of(run.out, node_name()), run.ranks.rank
        make_root(self.root)
        self._peers: PeerFiles = PeerFiles(self.root, _own_address())
        said = run.ranks.all_gather_object([node_name(), list(self._peers.address), self._peers.token])
        to = neighbor(self.rank, [node for node, _, _ in said])
        self._to = None if to is None else (tuple(said[to][1]), said[to][2])
        if [node for node, _, _ in said].index(node_name()) == self.rank:
            forget(self.root, 10**9)  # of the start before, which has other ranks

    def make(self, run: RunView, step: int) -> None:
        """Copy the state of this step, give it to the neighbor, then forget the one before."""
        from erniecore_elastic_nodes.memory import COMPLETE, forget, step_directory
        from erniecore_elastic_nodes.peers import send

        started = time.perf_counter()
        own = step_directory(self.root, step) / f"rank-{self.rank}"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        copy: Mapping[str, object] = run.copy_state(own)
        fault = ""
        if self._to is not None:
            try:
                send(self._to[0], self._to[1], self.rank, step, sorted(own.glob("*.safetensors")))
            except CheckpointError as error:
                fault = str(error)
        (own / COMPLETE).write_text(json.dumps({**copy, "keep": run.settings.checkpoint.keep}), encoding="utf-8")
        faults = [text for text in run.ranks.all_gather_object(fault) if text]
        if faults:
            raise CheckpointError(faults[0])
        forget(self.root, step)
        if run.is_main and step == run.settings.callbacks[PeerCopies.name].every:
            run.emit("peer_copy", step=step, seconds=time.perf_counter() - started)


def _own_address() -> str:
    """This machine's address on the way to the first rank; the loopback one for a run of one process."""
    host, _, port = os.environ.get("PADDLE_MASTER", "").rpartition(":")
    if not host:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


plugin = PeerCopies()
