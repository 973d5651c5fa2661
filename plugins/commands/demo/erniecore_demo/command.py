"""``ernie demo``, which is also ``ernie run --demo``."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where to write; default: runs/demo-N.")] = "",
) -> int:
    """Run the embedded example on this machine: train, kill, resume, align, export."""
    from erniecore_demo import story

    return story.main(out)
