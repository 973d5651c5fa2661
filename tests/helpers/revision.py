"""The commit that a run writes into ``resolved.yaml``, asked of git once per directory and process: a run of a tiny model takes
a fifth of a second, and ``git status`` of this repository would be a tenth of that.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from erniecore.config import resolved

asked = resolved.git_revision


@cache
def _in(place: Path) -> str:
    return asked(place)


def git_revision(directory: Path | None = None) -> str:
    """In place of the function of this name."""
    return _in(Path.cwd()) if directory is None else asked(directory)
