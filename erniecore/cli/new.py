"""``ernie new plugin``: writes a plugin package that works and whose tests pass. The templates are in
``erniecore/scaffold``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.cli import render
from erniecore.cli.group import new_group
from erniecore.cli.options import JsonOption
from erniecore.errors import Exit

app = new_group("Write a plugin package whose tests pass.")


@app.callback()
def _group() -> None:
    """Write a plugin package whose tests pass."""


@app.command("plugin")
def plugin(
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="model, method, device, format, callback, …")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Lower-case words joined by hyphens.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Default: ./erniecore-NAME.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Write a package for a new plugin: code that runs, settings, a README and tests."""
    from erniecore.registry import entries
    from erniecore.scaffold.generate import check_name, write
    from erniecore.scaffold.kinds import DRAFTS

    check_name(kind, name, {entry.name for entry in entries(kind)} | _commands(kind) if kind in DRAFTS else ())
    target = out or Path(f"erniecore-{name}")
    written = write(kind, name, target)
    if as_json:
        files = [str(path.relative_to(target)) for path in written]
        render.show_json({"kind": kind, "name": name, "out": str(target), "files": files})
        return int(Exit.OK)
    render.show(*(str(path) for path in written), "")
    render.show(f"next: pip install -e {target} && python -m pytest {target} && ernie conform {kind} {name}")
    return int(Exit.OK)


def _commands(kind: str) -> set[str]:
    """Names of the core's own commands, which no plugin can have."""
    if kind != "command":
        return set()
    from erniecore.cli.app import COMMANDS

    return set(COMMANDS)
