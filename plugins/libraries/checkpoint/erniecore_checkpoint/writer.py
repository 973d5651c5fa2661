"""Saving a checkpoint so that a kill, a power cut or a full disk at any moment loses nothing that was saved before.

Order: space check, hidden temporary directory, files with fsync, manifest, fsync, rename, fsync of the parent,
``latest.json``, retention. Until the rename the older checkpoints are untouched; after it the new one is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from erniecore_errors import CheckpointError, shorten
from erniecore_system.durable import replace_file, sync_directory, write_file

from erniecore_checkpoint.files import free_bytes, require_space, translated
from erniecore_checkpoint.leftovers import clear_leftovers, discard, hidden_name, is_ours, owner, remove_directory
from erniecore_checkpoint.manifest import MANIFEST_NAME, STATE_NAME, Manifest, checkpoint_name
from erniecore_checkpoint.retention import MINIMUM, prune
from erniecore_checkpoint.safetensors_write import WrittenFile
from erniecore_checkpoint.verified import remember_verified

LATEST_NAME = "latest.json"
#: what is being done and what its failure means, for errors of the disk
SAVING = ("saving a checkpoint", "older checkpoints are untouched")


class Save:
    """One save: a directory that others may write files into between :meth:`begin` and :meth:`finish`. Whatever fails,
    older checkpoints are untouched, and :meth:`discard` removes what there is.

    Args:
        see :func:`erniecore_checkpoint.save.save_checkpoint`.
    Raises:
        CheckpointError: a state that cannot be stored.
    """

    def __init__(
        self,
        root: Path,
        step: int,
        state: Mapping[str, Any],
        keep: int,
        *,
        parent_step: int | None = None,
        config_hash: str = "",
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.root, self.keep, self._document = root, keep, _state_bytes(state)
        self._manifest = Manifest(
            step=step,
            status="writing",
            parent_step=parent_step,
            config_hash=config_hash,
            versions=dict(versions or {}),
            owner=owner(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        self.directory = root / hidden_name("tmp", step)

    def begin(self, num_bytes: int) -> Path:
        """Make room for so many bytes and the directory for the files; returns it. Raises ``CheckpointError``."""
        with translated(self.root, *SAVING):
            if not self.root.is_dir():
                self.root.mkdir(parents=True)
            clear_leftovers(self.root)
            _make_space(self.root, len(self._document) + num_bytes, self.keep)
            with self.watched():
                self.directory.mkdir()
                write_file(self.directory / MANIFEST_NAME, self._manifest.to_bytes())
        return self.directory

    @contextmanager
    def watched(self) -> Iterator[None]:
        """An error in the block removes what was written; raises ``CheckpointError`` for those of the disk."""
        try:
            with translated(self.root, *SAVING):
                yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was written, as far as the disk lets us; the next save tries again."""
        discard(self.directory)

    def finish(self, files: Mapping[str, WrittenFile], groups: Mapping[str, list[str]]) -> Path:
        """All ``files`` are on the disk: state, manifest, name, retention; returns the checkpoint's directory.

        Raises:
            CheckpointError: a file is not there as it was written; a failing disk.
        """
        step = self._manifest.step
        with self.watched():
            _check_present(self.directory, files)
            every = {**files, STATE_NAME: _write_state(self.directory / STATE_NAME, self._document)}
            complete = replace(self._manifest, status="complete", files=every, groups=dict(groups))
            replace_file(self.directory / MANIFEST_NAME, complete.to_bytes())
            target = _publish(self.directory, self.root, step)
        with translated(self.root, "finishing a save", f"{target.name} itself is complete"):
            remember_verified(target)
            replace_file(self.root / LATEST_NAME, (json.dumps({"step": step, "path": target.name}) + "\n").encode())
            prune(self.root, self.keep)
        return target


def _check_present(directory: Path, files: Mapping[str, WrittenFile]) -> None:
    """Raises ``CheckpointError`` if another machine's files are not seen here in their full size."""
    for file in files.values():
        path = directory / file.name
        size = path.stat().st_size if path.exists() else 0
        if size != file.num_bytes:
            raise CheckpointError(
                "a file that another process wrote is not here",
                where=str(path),
                found=f"{size} bytes",
                expected=f"{file.num_bytes} bytes",
                fix="`run.out` must be in a file system that all machines share",
            )


def check_groups(groups: Iterable[str]) -> None:
    """Raises ``ValueError`` for a group that could not be part of a file's name."""
    for group in groups:
        if not group.replace(".", "").isalnum():
            raise ValueError(f"a tensor group is named with letters, digits and dots, got {group!r}")


def _state_bytes(state: Mapping[str, Any]) -> bytes:
    _check_json(dict(state), "state")
    return (json.dumps(state, indent=1, ensure_ascii=False) + "\n").encode()


def _check_json(value: Any, where: str) -> None:
    """json.dumps would turn a key 3 into "3" and a tuple into a list; the state must come back as it was."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError("the state needs text keys", where=where, found=shorten(key))
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, f"{where}[{index}]")
    elif value is not None and type(value) not in (str, int, float, bool):
        raise CheckpointError(
            "the state can hold only JSON values (dict, list, str, int, float, bool, None)",
            where=where,
            found=f"{type(value).__name__} {shorten(value, 40)}",
        )


def _make_space(root: Path, need: int, keep: int) -> None:
    if free_bytes(root) < need * 1.2:
        # what retention would remove after this save anyway
        prune(root, max(keep - 1, MINIMUM))
    require_space(root, need, "a checkpoint")


def _write_state(path: Path, document: bytes) -> WrittenFile:
    write_file(path, document)
    return WrittenFile(path.name, len(document), hashlib.sha256(document).hexdigest())


def _publish(temporary: Path, root: Path, step: int) -> Path:
    """Give the finished directory its name; an older checkpoint of the same step is moved aside, then removed."""
    target = root / checkpoint_name(step)
    aside = None
    if target.exists():
        if not is_ours(target):
            raise CheckpointError(
                "this directory is in the way and holds files that are not a checkpoint's",
                where=str(target),
                fix="move it elsewhere",
            )
        aside = root / hidden_name("old", step)
        os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except BaseException:
        if aside:
            os.rename(aside, target)
        raise
    sync_directory(root)
    if aside:
        remove_directory(aside)
    return target
