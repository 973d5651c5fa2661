"""What a coordinator keeps on disk, so that it can be killed at any moment: the anchors, the updates of the last rounds, and
``state.json``, which is replaced as the last thing of each round.

```text
DIR/state.json                       round, terms, sites, which anchors count
DIR/anchor-00-00000012.safetensors   of a fragment after a round, with the state of the outer optimizer
DIR/rounds/00000012/NAME.update      of each site; result.json once the round is closed; sum: of masked updates
DIR/events.jsonl                     every decision, with its reason
```
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from erniecore_system.durable import replace_file
from erniecore_system.files import read_json, read_object

from erniecore.api import CheckpointError
from erniecore.api.tensors import open_tensors, translated, write_safetensors
from erniecore_wan.arrays import AnyArray, Vector
from erniecore_wan.rounds import Result, result_from

STATE, EVENTS = "state.json", "events.jsonl"
_FIX = "name another directory; the sites then begin a new run among themselves"


class Store:
    """The directory of a coordinator. ``keep``: closed rounds whose updates stay, for sites that come back."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory, self._keep, self._lock = directory, keep, threading.Lock()
        with translated(directory, "opening the directory of the coordinator"):
            (directory / "rounds").mkdir(parents=True, exist_ok=True)

    def state(self) -> dict[str, Any] | None:
        """What the last :meth:`commit` wrote; ``None`` before the first."""
        path = self.directory / STATE
        if not path.exists():
            return None
        return read_object(path, CheckpointError, fix=_FIX)

    def damaged(self, found: str) -> CheckpointError:
        """The error for a state that is none."""
        where = str(self.directory / STATE)
        return CheckpointError("the state of the coordinator cannot be read", where=where, found=found, fix=_FIX)

    def commit(self, state: Mapping[str, Any]) -> None:
        """From here on this is the state; anchors and rounds that nobody needs any more are removed."""
        replace_file(self.directory / STATE, json.dumps(state, indent=1).encode())
        needed = {name for names in state["anchors"] for name in names}
        for path in self.directory.glob("anchor-*.safetensors"):
            if path.name not in needed:
                path.unlink(missing_ok=True)
        for path in (self.directory / "rounds").iterdir():
            if path.name.isdigit() and int(path.name) < state["round"] - self._keep:
                shutil.rmtree(path, ignore_errors=True)

    def write_anchor(self, fragment: int, round_: int, anchor: Vector, state: Mapping[str, AnyArray]) -> str:
        """A fragment's anchor on disk, not yet committed; the name of its file."""
        name = f"anchor-{fragment:02d}-{round_:08d}.safetensors"
        path = self.directory / name
        path.unlink(missing_ok=True)  # of a round that was not committed
        write_safetensors(path, {"anchor": anchor, **state})
        return name

    def read_anchor(self, name: str) -> tuple[Vector, dict[str, AnyArray]]:
        return read_anchor(self.directory / name)

    def put_update(self, round_: int, name: str, data: bytes) -> None:
        """A site's update of a round, durable."""
        path = self._round(round_) / f"{name}.update"
        path.parent.mkdir(exist_ok=True)
        replace_file(path, data)

    def updates(self, round_: int) -> dict[str, bytes]:
        """Site -> update of a round."""
        return {path.stem: path.read_bytes() for path in sorted(self._round(round_).glob("*.update"))}

    def update_path(self, round_: int, name: str) -> Path | None:
        """File with a site's update, if it is still there."""
        path = self._round(round_) / f"{name}.update"
        return path if path.is_file() else None

    def put_sum(self, round_: int, data: bytes) -> None:
        """The sum of the masked updates of a round, durable."""
        replace_file(self.sum_path(round_), data)

    def sum_path(self, round_: int) -> Path:
        """The file that :meth:`put_sum` writes, whether it is there or not."""
        return self._round(round_) / "sum"

    def put_result(self, result: Result) -> None:
        replace_file(self._round(result.round) / "result.json", json.dumps(asdict(result)).encode())

    def result(self, round_: int) -> Result | None:
        """A closed round, if it is still there."""
        path = self._round(round_) / "result.json"
        return result_from(read_json(path)) if path.is_file() else None

    def emit(self, event: str, **fields: object) -> None:
        """One line of ``events.jsonl``."""
        line = json.dumps({"event": event, "time": time.time(), **fields})
        with self._lock, (self.directory / EVENTS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _round(self, round_: int) -> Path:
        return self.directory / "rounds" / f"{round_:08d}"


def read_anchor(path: Path) -> tuple[Vector, dict[str, AnyArray]]:
    """Anchor float32 [n] and state of the outer optimizer of a file. Raises ``CheckpointError`` for a damaged one."""
    arrays = {name: np.array(tensor.load()) for name, tensor in open_tensors(path).items()}
    anchor = arrays.pop("anchor", None)
    if anchor is None or not np.isfinite(anchor).all():
        found = ", ".join(sorted(arrays)[:5])
        raise CheckpointError("this file has no anchor, or one of no finite numbers", where=str(path), found=found)
    return anchor, arrays
