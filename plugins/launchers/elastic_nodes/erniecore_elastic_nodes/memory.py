"""Copies of a run's state in the memory of the machines: files of a checkpoint in a directory of ``/dev/shm``, which survive the
process that wrote them. Each rank writes its part of the state there and gives a copy to a rank of another machine, so that the
state is complete while no two neighboring machines are lost together (Gemini, SOSP 2023). Written by the callback
``peer-copies`` in the ranks, made a checkpoint of by the launcher, which has no paddle.

The directory of one machine, for every step of which a copy was begun::

    step-00000012/rank-3/            what rank 3 of this machine wrote
    step-00000012/peer-1/            what rank 1 of another machine gave it
    step-00000012/rank-3/copy.json   written last: what makes a checkpoint of the files of all ranks
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from erniecore_checkpoint.manifest import file_from_json
from erniecore_checkpoint.safetensors_write import WrittenFile
from erniecore_checkpoint.writer import Save

from erniecore.api import CheckpointError

#: name of the file that says that a rank's part is complete
COMPLETE = "copy.json"
_STEP = re.compile(r"step-(\d{8})$")


def root_of(out: Path, node: str, base: Path = Path("/dev/shm")) -> Path:
    """The directory of one run on one machine. Machines that are played by one have several names, and so several directories."""
    key = hashlib.sha256(f"{os.getuid()}\0{out.resolve()}\0{node}".encode()).hexdigest()[:24]
    return base / f"erniecore-{key}"


def make_root(root: Path) -> None:
    """Make the directory, for this user alone. Raises ``CheckpointError`` where another user has made it."""
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        info = root.lstat()
    except OSError as error:
        raise CheckpointError("no memory for copies of the state", where=str(root), found=str(error)) from error
    if info.st_uid != os.getuid() or not stat.S_ISDIR(info.st_mode):
        raise CheckpointError("this directory belongs to somebody else", where=str(root), fix="remove it")


def step_directory(root: Path, step: int) -> Path:
    """The directory of one step."""
    return root / f"step-{step:08d}"


def steps_in(root: Path) -> list[int]:
    """Steps of which there is something, the newest first."""
    if not root.is_dir():
        return []
    return sorted((int(found[1]) for path in root.iterdir() if (found := _STEP.match(path.name))), reverse=True)


def forget(root: Path, below: int | None = None) -> None:
    """Remove the copies of earlier steps than ``below``; ``None``: the whole directory."""
    if below is None:
        shutil.rmtree(root, ignore_errors=True)
        return
    for step in steps_in(root):
        if step < below:
            shutil.rmtree(step_directory(root, step), ignore_errors=True)


def description(root: Path, step: int) -> dict[str, Any] | None:
    """What makes a checkpoint of a step's files, if a rank of this machine has completed its part; the same on all."""
    for path in step_directory(root, step).glob(f"*/{COMPLETE}"):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_bytes())
            if isinstance(found, dict) and "files" in found:
                return found
    return None


def files_of(root: Path, step: int) -> dict[str, Path]:
    """The files of a step on this machine by name, its own ranks' and those that it was given."""
    return {path.name: path for path in step_directory(root, step).glob("*/*.safetensors")}


def inventory(root: Path) -> list[dict[str, Any]]:
    """What this machine has, to be sent, the newest step first: ``step``, and the names of ``files`` whose size is right. What
    they hold is checked by those who load the checkpoint, against the hashes of when they were written."""
    found = []
    for step in steps_in(root):
        copy = description(root, step)
        if copy is not None:
            sizes = {name: int(entry["bytes"]) for name, entry in copy["files"].items()}
            here = [name for name, path in files_of(root, step).items() if path.stat().st_size == sizes.get(name)]
            found.append({"step": step, "files": sorted(here)})
    return found


def give(root: Path, step: int, names: Iterable[str], target: Path) -> None:
    """Write these files of this machine into the unfinished checkpoint ``target``. Raises ``OSError``."""
    own = files_of(root, step)
    for name in names:
        with own[name].open("rb") as source, (target / name).open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())


def divide(
    copies: Sequence[Sequence[Mapping[str, Any]]], needed: Callable[[int], Iterable[str]]
) -> tuple[int, list[list[str]]]:
    """The newest step that the machines have together, and which files of it each is to give.

    Args:
        copies: of each machine, what :func:`inventory` says. needed: the files of a step.
    Returns:
        step, files by machine; step -1 where they have none together.
    """
    for step in sorted({int(row["step"]) for rows in copies for row in rows}, reverse=True):
        have = [{str(name) for row in rows if row["step"] == step for name in row["files"]} for rows in copies]
        gives: list[list[str]] = [[] for _ in copies]
        for name in needed(step):
            holders = [i for i, names in enumerate(have) if name in names]
            if not holders:
                break
            gives[min(holders, key=lambda i: len(gives[i]))].append(name)
        else:
            return step, gives
    return -1, [[] for _ in copies]


def save_of(out: Path, copy: Mapping[str, Any]) -> tuple[Save, dict[str, WrittenFile]]:
    """The checkpoint that the files of a copy become, begun, and these files. Raises ``CheckpointError``."""
    files = {name: file_from_json(name, dict(entry)) for name, entry in copy["files"].items()}
    save = Save(
        out / "ckpt",
        int(copy["step"]),
        copy["state"],
        int(copy["keep"]),
        config_hash=copy["config_hash"],
        versions=copy["versions"],
    )
    save.begin(sum(file.num_bytes for file in files.values()))
    return save, files
