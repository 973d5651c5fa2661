"""What a user's process gets as its environment, and whether processes of others are still there."""

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path


def user_environ(**more: str) -> dict[str, str]:
    """This environment without settings of ours, without colors, and with one thread for each operator; ``more``: beside it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ERNIE_")}
    return {**kept, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **more}


def commit() -> str:
    """Of this tree; ``-dirty`` where files have changed since, but for the counts that suites write."""
    git = ["git", "-C", str(Path(__file__).parents[2])]
    describe = [*git, "describe", "--always", "--abbrev=12"]
    name = subprocess.run(describe, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    compare = [*git, "diff", "--quiet", "HEAD", "--", ".", ":!docs/data", ":!docs/explanation/promises.md"]
    return name + ("-dirty" if subprocess.run(compare, check=False).returncode == 1 else "")


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
