"""``ernie data cache``: what the token cache holds, and removing it. No paddle; the work is in ``erniecore.data.cache_list``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.cli import render
from erniecore.cli.group import new_group
from erniecore.cli.options import JsonOption

app = new_group("List or remove tokenised samples that runs keep on disk (data.cache).")

Directory = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="The cache; default: that of data.cache=auto.")
]


@app.command("list")
def show(directory: Directory = None, as_json: JsonOption = False) -> None:
    """Every entry with its size, when it was last used, and the file that it was made of."""
    from erniecore.data.cache_list import entries
    from erniecore.data.splits import user_cache
    from erniecore.units import size_text

    where = directory or user_cache()
    found = entries(where)
    if as_json:
        render.show_json([entry.as_dict() for entry in found])
        return
    rows = [(e.key, size_text(e.bytes), e.used_text, "" if e.complete else "unfinished", e.file) for e in found]
    if rows:
        render.show_table(("key", "size", "last used", "", "file"), rows)
    render.show(f"{len(found)} entries, {size_text(sum(e.bytes for e in found))} in {where}")


@app.command()
def prune(
    directory: Directory = None,
    days: Annotated[float, typer.Option("--days", min=0, help="Remove what was not used for so many days.")] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Remove entries that were not used for a while; what a run uses now stays."""
    from erniecore.data.cache_list import remove_old
    from erniecore.data.splits import user_cache
    from erniecore.units import size_text

    removed = remove_old(directory or user_cache(), days)
    if as_json:
        render.show_json([entry.as_dict() for entry in removed])
    else:
        render.show(f"removed {len(removed)} entries, {size_text(sum(e.bytes for e in removed))}")
