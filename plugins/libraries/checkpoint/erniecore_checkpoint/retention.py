"""Which checkpoints stay: the newest ``keep`` that verify, never fewer than two, everything newer than those, and those of the
steps that they call the best (``best`` in ``state.json``).

Removes only directories that are provably ours (a valid manifest and nothing else inside); a damaged checkpoint does
not count as kept.
"""

from __future__ import annotations

import os
from pathlib import Path

from erniecore_errors import CheckpointError
from erniecore_system.durable import sync_directory
from erniecore_system.files import read_json

from erniecore_checkpoint.leftovers import hidden_name, is_ours, remove_directory
from erniecore_checkpoint.manifest import STATE_NAME, list_checkpoints, read_manifest, step_of
from erniecore_checkpoint.verified import is_known

#: one damaged checkpoint must never be the only one
MINIMUM = 2


def prune(root: Path, keep: int) -> list[Path]:
    """Remove checkpoints older than the newest ``max(keep, 2)`` verified ones, except those of the best steps; returns what
    was removed.

    Raises:
        OSError: a directory could not be removed; what is left of it is cleared by the next save.
    """
    removed: list[Path] = []
    num_verified, best = 0, set[object]()
    for path in reversed(list_checkpoints(root)):
        if num_verified < max(keep, MINIMUM):
            num_verified += _is_whole(path)
            best.add(_best_step(path))
        elif step_of(path.name) not in best and _removable(path):
            _remove(path)
            removed.append(path)
    return removed


def _best_step(path: Path) -> object:
    """The step that a checkpoint calls the best so far; ``-1``: none, or it cannot be read."""
    try:
        return read_json(path / STATE_NAME)["best"]["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _is_whole(path: Path) -> bool:
    if is_known(path):  # all that this process wrote
        return True
    from erniecore_checkpoint.verify import is_verified

    return is_verified(path)


def _removable(path: Path) -> bool:
    if not is_ours(path):
        return False
    try:
        return read_manifest(path).status == "complete"
    except CheckpointError:
        return False


def _remove(path: Path) -> None:
    # renamed first, so that a half-removed directory never looks like a checkpoint
    trash = path.with_name(hidden_name("trash", read_manifest(path).step))
    os.rename(path, trash)
    sync_directory(path.parent)
    remove_directory(trash)
