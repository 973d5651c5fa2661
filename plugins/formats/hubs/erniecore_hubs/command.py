"""``ernie model pull``: a model of a hub, as it is now, into the user's cache or a directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from erniecore.api.command import JsonOption, show, show_json


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="hf:owner/name or ms:owner/name, also with @revision.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Also copy it here; new or empty.", show_default="the user's cache alone"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Download a model from a hub: config.json, safetensors, tokenizer and chat template, nothing else.

    Resolves the revision to a commit. Afterwards `--model NAME` uses this commit without a network. If interrupted, the same
    command continues where it stopped.
    """
    from erniecore.api.building import atomic_directory, check_target
    from erniecore_hubs.pulling import pin, pull_model

    if out is not None:
        check_target(out)
    pinned = pin(name, True, newest=True)
    directory = pull_model(str(pinned))
    if out is not None:
        with atomic_directory(out) as target:
            shutil.copytree(
                directory, target, dirs_exist_ok=True, ignore=lambda _, files: [f for f in files if f[0] == "."]
            )
        directory = out
    files = sorted(path for path in directory.iterdir() if path.is_file())
    if as_json:
        show_json({"name": str(pinned), "path": str(directory), "files": {f.name: f.stat().st_size for f in files}})
        return
    total = sum(path.stat().st_size for path in files)
    show(f"{pinned}: {len(files)} files, {total:,} bytes", str(directory))
