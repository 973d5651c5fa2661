"""``ernie merge``: an adapter into the weights of its base. The work is in ``merging.py`` and in the adapter
plugin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.api.command import JsonOption, note, opens_models, show, show_json


@opens_models
def merge(
    adapter: Annotated[Path, typer.Argument(help="A run, or the directory of an adapter (erniecore, PEFT, ERNIEKit).")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write; new, empty, or an earlier model of ours.")],
    base: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Model directory that the adapter belongs to [what its run was given]."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the base with the adapter merged into its weights, in the Hugging Face format.

    Merges in float32, compares merged and unmerged logits and stops if they differ; never merges an adapter twice.
    """
    from erniecore_merge.merging import merge_directory

    done = merge_directory(adapter, base, out)
    if as_json:
        show_json({**done._asdict(), "path": str(done.path)})
        return
    for text in done.notes:
        note(f"note: {text}")
    show(
        f"{done.path}: merged, stored as {done.dtype}; before rounding the logits differ by at most {done.difference:.3g} "
        f"(the largest is {done.largest:.3g})"
    )
