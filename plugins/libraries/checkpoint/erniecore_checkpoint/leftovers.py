"""What an interrupted save or removal leaves behind, and how the next save clears it up.

Only directories that this package made are touched: the name must be one of ours and every file in it too.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import time
from pathlib import Path

from erniecore_errors import CheckpointError
from erniecore_system.durable import sync_directory

from erniecore_checkpoint.manifest import MANIFEST_NAME, STATE_NAME, checkpoint_name, read_manifest

_LEFTOVER = re.compile(r"\.(?P<role>tmp|old|trash)-step-(?P<step>\d{8,})-[0-9a-f]{8}")
_OUR_FILE = re.compile(
    rf"{MANIFEST_NAME}|\.{MANIFEST_NAME}\.\d+\.tmp|{STATE_NAME}|[\w.]+-\d{{5}}-of-\d{{5}}\.safetensors"
)
#: another host's unfinished save is taken for dead when nothing was written to it for so long
_FOREIGN_SECONDS = 24 * 3600


def hidden_name(role: str, step: int) -> str:
    """A new name for a directory that is being written (``tmp``), replaced (``old``) or removed (``trash``)."""
    return f".{role}-{checkpoint_name(step)}-{secrets.token_hex(4)}"


def owner() -> dict[str, object]:
    """This process, for the manifest of a save in progress."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


def is_ours(directory: Path) -> bool:
    """Whether everything in ``directory`` is a file that a checkpoint consists of (an empty one counts)."""
    if directory.is_symlink() or not directory.is_dir():
        return False
    return all(_OUR_FILE.fullmatch(p.name) and p.is_file() and not p.is_symlink() for p in directory.iterdir())


def remove_directory(directory: Path) -> None:
    """Remove one of our directories, its manifest last: what is left of it stays recognisable."""
    for path in sorted(directory.iterdir(), key=lambda p: p.name == MANIFEST_NAME):
        path.unlink()
    directory.rmdir()


def discard(directory: Path) -> None:
    """Remove our own failed attempt as far as the disk lets us; the next save tries again."""
    shutil.rmtree(directory, ignore_errors=True)


def set_aside(root: Path) -> dict[int, Path]:
    """Step -> a complete checkpoint that was moved aside to be replaced when the save was killed."""
    if not root.is_dir():
        return {}
    found = {}
    for path in root.iterdir():
        match = _LEFTOVER.fullmatch(path.name)
        if match and match["role"] == "old" and is_ours(path):
            found[int(match["step"])] = path
    return found


def clear_leftovers(root: Path) -> list[Path]:
    """Remove what dead saves and removals left in ``root``; put back a checkpoint that was moved aside and not replaced.

    Returns:
        The directories that were removed.
    """
    removed = []
    for step, path in set_aside(root).items():
        if not (root / checkpoint_name(step)).exists():
            os.rename(path, root / checkpoint_name(step))
            sync_directory(root)
    for path in sorted(root.iterdir()):
        if _LEFTOVER.fullmatch(path.name) and is_ours(path) and not _in_use(path):
            remove_directory(path)
            removed.append(path)
    return removed


def _in_use(directory: Path) -> bool:
    """Whether a living process is still writing ``directory``."""
    if not directory.name.startswith(".tmp-"):
        return False
    try:
        writer = read_manifest(directory).owner
    except CheckpointError:
        return False
    if writer.get("host") != socket.gethostname():
        return time.time() - directory.stat().st_mtime < _FOREIGN_SECONDS
    pid = writer.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
