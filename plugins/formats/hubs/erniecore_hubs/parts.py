"""Files of a repository into a directory, so that what is interrupted goes on where it stopped. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from erniecore_system.files import file_hash

from erniecore.api import CheckpointError


def fetch_parts(files: Iterable[str], directory: Path, fetch: Callable[[str, Path], None]) -> None:
    """Files into a directory, under the lock of who asks. A file that is not whole is `.parts/FILE`.

    Args:
        fetch: (file, part) -> the part has the whole file; it goes on from what the part has.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        target, part = directory / file, directory / ".parts" / quote(file, safe="")
        if not target.is_file():
            part.parent.mkdir(exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            fetch(file, part)
            part.replace(target)


def check_content(part: Path, sha256: str, where: str) -> None:
    """Raise ``CheckpointError``, and remove the part, where it is not what the hub announced."""
    if file_hash(part) == sha256:
        return
    part.unlink()
    raise CheckpointError(
        "the file is not the one that the hub announced",
        where=where,
        expected=f"sha256 {sha256}",
        fix="repeat the command",
        code="ERN-K002",
    )
