"""Whether processes of others are still there."""

import time
from collections.abc import Iterable
from pathlib import Path


def lives(pid: int | str) -> bool:
    """Whether a process runs; one that has ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_end(pids: Iterable[int | str]) -> None:
    """Wait until none of them runs."""
    left = list(pids)
    while any(map(lives, left)):
        time.sleep(0.01)
