"""Directories whose writing takes long: what is finished stays when the writer is killed or fails, and the next writer of the
same thing goes on behind it. The target appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from erniecore_system.durable import replace_file
from erniecore_system.files import file_hash, read_json
from erniecore_system.units import counted

from erniecore.api import CheckpointError
from erniecore.api.checkpoints import translated
from erniecore.api.quantization import WRITING, check_target, claimed, publish

_PROGRESS = ".erniecore-progress.json"


class Progress:
    """An unfinished ``directory``; ``facts``: what it is made from, JSON; ``files``: name of a finished file -> ``bytes``,
    ``sha256`` and what else the writer wants to know of it, JSON; ``notes``: for the user."""

    def __init__(self, directory: Path, facts: Mapping[str, Any]) -> None:
        self.directory, self.facts = directory, dict(facts)
        self.files: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []

    def finish(self, name: str, record: Mapping[str, Any]) -> None:
        """The file ``name`` is on the disk, and is kept from here on."""
        self.files[name] = dict(record)
        replace_file(self.directory / _PROGRESS, json.dumps({"facts": self.facts, "files": self.files}).encode())


@contextmanager
def resumable_directory(target: Path, facts: Mapping[str, Any]) -> Iterator[Progress]:
    """A directory beside ``target`` that takes its name when the block ends without an error. After an error its finished files
    stay there, and a later call with equal ``facts`` finds those that are still what was written.

    Raises:
        CheckpointError: the target is not free, a running process writes it, or the disk is full, failing or read-only.
    """
    target = Path(os.path.abspath(target))
    check_target(target)
    directory = target.with_name(f".unfinished-{target.name}")
    with translated(target, "writing a model directory", "what is finished is kept: the same command goes on"):
        target.parent.mkdir(parents=True, exist_ok=True)
        progress = Progress(directory, facts)
        _check_mark(directory)
        directory.mkdir(exist_ok=True)
        with claimed(directory):
            _continue(progress)
            try:
                yield progress
                (directory / _PROGRESS).unlink(missing_ok=True)
                publish(directory, target)
            except BaseException:
                if not progress.files:
                    shutil.rmtree(directory, ignore_errors=True)
                raise


def _check_mark(directory: Path) -> None:
    """Raises ``CheckpointError`` for a ``directory`` with files that no writer of ours has marked."""
    names = {path.name for path in directory.iterdir()} if directory.exists() else set()
    if WRITING not in names and not all(name.startswith(WRITING) for name in names):
        raise CheckpointError(
            "this directory has the name of an unfinished model, but no mark of erniecore; nothing was changed",
            where=str(directory),
            fix="move it away",
        )


def _continue(progress: Progress) -> None:
    """Take over what a killed writer left, or remove it."""
    directory = progress.directory
    try:
        found = read_json(directory / _PROGRESS)
        facts, files = dict(found["facts"]), dict(found["files"])
    except (OSError, ValueError, KeyError, TypeError):
        facts, files = {}, {}
    changed = [name for name in {**facts, **progress.facts} if facts.get(name) != progress.facts.get(name)]
    if changed and files:
        progress.notes.append(f"begun anew, as {', '.join(changed)} changed since {directory.name} was begun")
    for path in sorted(directory.iterdir()):
        record = files.get(path.name)
        if not changed and record and path.stat().st_size == record["bytes"] and file_hash(path) == record["sha256"]:
            progress.files[path.name] = record
        elif path.name != WRITING and (path.name != _PROGRESS or changed):
            path.unlink()
    if progress.files:
        progress.notes.append(f"went on behind {counted(len(progress.files), 'finished file')}")
