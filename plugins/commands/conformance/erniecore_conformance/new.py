"""``ernie new plugin``: writes a plugin package that works and whose tests pass. The templates are in
``scaffold/``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.api import Exit
from erniecore.api.command import JsonOption, core_commands, new_group, show, show_json

app = new_group("Write a plugin package whose tests pass.")


@app.callback()
def _group() -> None:
    """Write a plugin package whose tests pass."""


@app.command("plugin")
def plugin(
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="model, method, device, format, callback, …")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Lower-case words joined by hyphens.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Default: ./erniecore-NAME; plugins/KIND/NAME in erniecore's tree."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write a package for a new plugin: code that runs, settings, a README and tests."""
    from erniecore.api.testing import entries
    from erniecore_conformance.scaffold.generate import check_name, default_folder, write
    from erniecore_conformance.scaffold.kinds import TEMPLATES

    check_name(kind, name, {entry.name for entry in entries(kind)} | _commands(kind) if kind in TEMPLATES else ())
    target = out or default_folder(kind, name, Path.cwd())
    written = write(kind, name, target)
    if as_json:
        files = [str(path.relative_to(target)) for path in written]
        show_json({"kind": kind, "name": name, "out": str(target), "files": files})
        return int(Exit.OK)
    show(*(str(path) for path in written), "")
    show(f"next: pip install -e '{target}[test]' && python -m pytest {target} && ernie conform {kind} {name}")
    return int(Exit.OK)


def _commands(kind: str) -> set[str]:
    """Names of the core's own commands, which no plugin can have."""
    return set(core_commands()) if kind == "command" else set()
