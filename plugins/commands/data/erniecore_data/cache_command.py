"""``ernie data cache``: the entries of the token cache, and their removal. Imports no paddle; prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.api import counted
from erniecore.api.command import JsonOption, new_group, show, show_json, show_table

app = new_group("List or remove tokenized samples that runs keep on disk (data.cache).")

Directory = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="The cache; default: that of data.cache=auto.")
]


@app.command("list")
def list_(directory: Directory = None, as_json: JsonOption = False) -> None:
    """Every entry with its size, when it was last used, and the file that was tokenized."""
    from erniecore.api.runs import size_text
    from erniecore.api.token_cache import user_cache
    from erniecore_data.cache_entries import entries

    where = directory or user_cache()
    found = entries(where)
    if as_json:
        show_json([entry.as_dict() for entry in found])
        return
    rows = [(e.key, size_text(e.bytes), e.used_text, "" if e.complete else "unfinished", e.file) for e in found]
    if rows:
        show_table(("key", "size", "last used", "", "file"), rows)
    show(f"{counted(len(found), 'entry')}, {size_text(sum(e.bytes for e in found))} in {where}")


@app.command()
def prune(
    directory: Directory = None,
    days: Annotated[float, typer.Option("--days", min=0, help="Remove what was not used for so many days.")] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Remove entries that were not used for a while; what a run uses now stays."""
    from erniecore.api.runs import size_text
    from erniecore.api.token_cache import user_cache
    from erniecore_data.cache_entries import remove_old

    removed = remove_old(directory or user_cache(), days)
    if as_json:
        show_json([entry.as_dict() for entry in removed])
    else:
        show(f"removed {counted(len(removed), 'entry')}, {size_text(sum(e.bytes for e in removed))}")
