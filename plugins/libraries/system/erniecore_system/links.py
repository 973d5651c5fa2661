"""Where links in a model directory may lead; imported for a directory that has any. Standard library only."""

import os
from collections.abc import Callable
from pathlib import Path


def check(directory: Path, error: Callable[..., Exception]) -> None:
    """Raise ``error`` for the first link that leaves ``directory`` or, in a cache of the Hugging Face hub, its ``models--*``,
    unless ``ERNIE_FOLLOW_LINKS`` allows all."""
    if os.environ.get("ERNIE_FOLLOW_LINKS", "") not in ("", "0"):
        return
    root = directory.resolve()
    home = next((place for place in root.parents if place.name.startswith("models--")), root)
    for path in sorted(directory.iterdir()):
        if path.is_symlink() and not path.resolve().is_relative_to(home):
            raise error(
                "this file is a link to a place outside of its directory",
                where=str(path),
                found=str(path.resolve()),
                expected=f"a link that stays below {home}",
                fix="copy the file there; if you trust whoever made the link, --follow-links (or ERNIE_FOLLOW_LINKS=1) reads it",
                code="ERN-K022",
            )
