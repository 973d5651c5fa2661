"""``ernie demo``, which is also ``ernie run --demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from erniecore.api import UsageError
from erniecore.api.command import did_you_mean

#: what there is to show
STORIES = ("text", "vision")


def demo(
    story: Annotated[
        str, typer.Argument(metavar="[text|vision]", help="Small tasks in text, or words and numbers in images.")
    ] = "text",
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where to write; default: runs/demo-N.")] = "",
) -> int:
    """Run an embedded example on this machine: train, kill, resume, export; `text` also aligns."""
    if story not in STORIES:
        fix = did_you_mean(story, STORIES, "choose one of these")
        raise UsageError("no such example", found=story, expected=" or ".join(STORIES), fix=fix)
    if story == "vision":
        from erniecore_demo import reading

        return reading.main(out)
    from erniecore_demo.story import main

    return main(out)
