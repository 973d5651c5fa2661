"""After a loss: the copies that the machines have in memory become a checkpoint in the run directory, from which the ranks go on
as from any other. The first machine asks the others what they have, and tells each which files to write. No paddle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from erniecore_nodes.agents import SILENCE

from erniecore.api import CheckpointError
from erniecore.api.files import parse_json
from erniecore.api.launcher import newest, node_name
from erniecore_elastic_nodes.events import Journal
from erniecore_elastic_nodes.members import Lobby, Member
from erniecore_elastic_nodes.memory import description, divide, give, inventory, root_of, save_of


class Rescue:
    """Checkpoints from copies in memory.

    Args:
        out: the run directory, which all machines share. lobby: of the first machine, which this is.

    Attributes:
        root: where this machine has its copies.
    """

    def __init__(self, out: Path, lobby: Lobby, note: Callable[[str], None], journal: Journal) -> None:
        self.out, self.lobby, self.note, self.journal = out, lobby, note, journal
        self.root = root_of(out, node_name())

    def run(self) -> None:
        """Save what is newer than the newest checkpoint, if the machines that are left have all of it; else do nothing."""
        own = inventory(self.root)
        if not own:
            return
        started = time.perf_counter()
        members = [member for member in self.lobby.members if not member.lost]
        said = self._ask(members, "copies", [{"do": "inventory"} for _ in members])
        members = [member for member in members if member in said]
        rows = [own, *(said[member]["rows"] for member in members)]
        step, gives = divide(rows, lambda step: (description(self.root, step) or {"files": ("",)})["files"])
        if step <= newest_step(self.out):
            if step < 0:
                self.note("the copies in memory are not complete: going on from the newest checkpoint")
            return
        try:
            self._save(step, members, gives)
        except (CheckpointError, OSError) as error:
            self.note(f"the copies of step {step} could not be saved: {error}")
            return
        seconds = time.perf_counter() - started
        self.journal.write("peer_copy_saved", step=step, machines=1 + len(members), seconds=seconds)
        self.note(f"step {step} saved from copies in memory in {seconds:.1f} s")

    def _save(self, step: int, members: list[Member], gives: list[list[str]]) -> None:
        copy = description(self.root, step)
        assert copy is not None
        save, files = save_of(self.out, copy)
        with save.watched():
            wanted = {"do": "give", "step": step, "directory": str(save.directory.resolve())}
            messages = [{**wanted, "files": names} for names in gives[1:]]
            give(self.root, step, gives[0], save.directory)
            answers = self._ask(members, "gave", messages)
            faults = [str(answers[member]["fault"]) if member in answers else "no answer" for member in members]
            bad = [f"{m.name}: {fault}" for m, fault in zip(members, faults, strict=True) if fault]
            if bad:
                raise CheckpointError("a machine did not write its copies", found="; ".join(bad))
        save.finish(files, copy["groups"])

    def _ask(self, members: list[Member], answer: str, messages: list[dict[str, Any]]) -> dict[Member, dict[str, Any]]:
        """What each says to its message; of those that are lost or silent, nothing."""
        for member, message in zip(members, messages, strict=True):
            member.channel.send(**message)
        found: dict[Member, dict[str, Any]] = {}
        end = time.monotonic() + 4 * SILENCE
        while any(member not in found and not member.lost for member in members) and time.monotonic() < end:
            for member, message in self.lobby.look():
                if message["do"] == answer:
                    found[member] = message
                elif message["do"] == "leave":
                    member.leaving = True
            time.sleep(0.01)
        return found


def newest_step(out: Path) -> int:
    """Of the newest checkpoint; -1 without one."""
    with suppress(ValueError, KeyError, TypeError):
        return int(parse_json(newest(out).encode())["step"])
    return -1
