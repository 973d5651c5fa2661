"""What a site remembers from step to step beside its checkpoints: the anchor, the state of the outer optimizer, what sparse
updates have left out, and an update that is on its way. A file of the run directory for each exchange, so that a checkpoint
of any step finds the one that was there then.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from erniecore_system.files import parse_json

from erniecore.api import CheckpointError
from erniecore.api.tensors import open_tensors, write_safetensors
from erniecore_wan.arrays import AnyArray, Vector

_PREFIX = "step-"


@dataclass
class Sent:
    """An update that is on its way.

    Attributes:
        round, fragment: of it. step: when it was sent. data: what was sent. error: what is left out once it counts.
    """

    round: int
    fragment: int
    step: int
    data: bytes
    error: Vector


@dataclass
class Memory:
    """The state of a site's exchange.

    Attributes:
        round: the next one. begun: step at which the last exchange began.
        interval, form, k: as they are now; ``adaptive`` changes them.
        anchors, errors: float32 [n] of each fragment. states: of the outer optimizer, of each fragment.
        sent: an update on its way.
    """

    round: int = 0
    begun: int = 0
    interval: int = 0
    form: str = ""
    k: int = 0
    anchors: list[Vector] = field(default_factory=list)
    errors: list[Vector] = field(default_factory=list)
    states: list[dict[str, AnyArray]] = field(default_factory=list)
    sent: Sent | None = None


_FACTS = ("round", "begun", "interval", "form", "k")


class MemoryFiles:
    """The files of a site, in ``wan/`` of its run directory."""

    def __init__(self, out: Path) -> None:
        self._directory, self._checkpoints = out / "wan", out / "ckpt"

    def write(self, step: int, memory: Memory) -> None:
        """The state after ``step``. Files that no checkpoint needs any more are removed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(step)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.unlink(missing_ok=True)
        write_safetensors(temporary, _tensors(memory))
        os.replace(temporary, path)
        steps = sorted(int(found.name[len(_PREFIX) :]) for found in self._checkpoints.glob(f"{_PREFIX}*[0-9]"))
        older = [found for found in self._steps() if found <= (steps[0] if steps else 0)]
        for found in older[:-1]:
            self._path(found).unlink(missing_ok=True)

    def read(self, step: int) -> Memory | None:
        """The state that a checkpoint of ``step`` goes on with; later files are removed. ``None``: there is none.

        Raises:
            CheckpointError: the file is damaged.
        """
        found = [one for one in self._steps() if one <= step]
        for later in (one for one in self._steps() if one > step):
            self._path(later).unlink(missing_ok=True)
        if not found:
            return None
        path = self._path(found[-1])
        try:
            return _memory({name: np.array(tensor.load()) for name, tensor in open_tensors(path).items()})
        except (CheckpointError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(
                "what this site remembers of the exchange is damaged",
                where=str(path),
                found=str(error),
                fix="remove the file; the site then joins anew, from the common weights",
            ) from error

    def _path(self, step: int) -> Path:
        return self._directory / f"{_PREFIX}{step:08d}.safetensors"

    def _steps(self) -> list[int]:
        return sorted(
            int(path.stem[len(_PREFIX) :]) for path in self._directory.glob(f"{_PREFIX}{'[0-9]' * 8}.safetensors")
        )


def _tensors(memory: Memory) -> dict[str, AnyArray]:
    facts: dict[str, Any] = {name: value for name, value in asdict(memory).items() if name in _FACTS}
    found: dict[str, AnyArray] = {}
    for index, (anchor, error, state) in enumerate(zip(memory.anchors, memory.errors, memory.states, strict=True)):
        found |= {f"anchor.{index}": anchor, f"error.{index}": error}
        found |= {f"outer.{index}.{name}": array for name, array in state.items()}
    if (sent := memory.sent) is not None:
        facts["sent"] = [sent.round, sent.fragment, sent.step]
        found |= {"sent.data": np.frombuffer(sent.data, np.uint8), "sent.error": sent.error}
    found["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    return found


def _memory(arrays: dict[str, AnyArray]) -> Memory:
    facts = parse_json(arrays["facts"].tobytes())
    numbers = facts.pop("sent", None)
    sent = None
    if numbers:
        round_, fragment, step = (int(number) for number in numbers)
        sent = Sent(round_, fragment, step, arrays["sent.data"].tobytes(), arrays["sent.error"])
    count = sum(name.startswith("anchor.") for name in arrays)
    states: list[dict[str, AnyArray]] = [{} for _ in range(count)]
    for name, array in arrays.items():
        kind, _, rest = name.partition(".")
        if kind == "outer":
            index, _, key = rest.partition(".")
            states[int(index)][key] = array
    anchors, errors = ([arrays[f"{kind}.{i}"] for i in range(count)] for kind in ("anchor", "error"))
    return Memory(**facts, anchors=anchors, errors=errors, states=states, sent=sent)
