"""``ernie new plugin``: writes a plugin package that works and whose tests pass. The templates are in
``scaffold/``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.api import Exit
from erniecore.api.command import JsonOption, core_commands, new_group, show, show_json

app = new_group("Create a plugin package with passing tests.")


@app.callback()
def _group() -> None:
    """Create a plugin package with passing tests."""


@app.command("plugin")
def plugin(
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="model, method, device, format, callback, …")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Lower-case words joined by hyphens.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Create it from a Python file with plugins, instead of --kind."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Default: ./erniecore-NAME; plugins/KIND/NAME in erniecore's tree."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write a package for a new plugin: code that runs, settings, a README and tests."""
    from erniecore.api import UsageError
    from erniecore_conformance.scaffold.generate import default_folder, write_files

    if (kind is None) == (source is None):
        fix = "ernie new plugin --kind KIND --name NAME, or ernie new plugin --from FILE"
        raise UsageError("give either --kind or --from", fix=fix)
    if source is not None:
        kind, name, texts = _of_file(source, name)
    elif kind is None or name is None:
        raise UsageError("Missing option '--name'", fix=f"ernie new plugin --kind {kind} --name NAME")
    else:
        texts = _of_template(kind, name)
    target = out or default_folder(kind, name, Path.cwd())
    written = write_files(texts, target)
    if as_json:
        files = [str(path.relative_to(target)) for path in written]
        show_json({"kind": kind, "name": name, "out": str(target), "files": files})
        return int(Exit.OK)
    show(*(str(path) for path in written), "")
    check = f"&& ernie conform {kind} {name}" if source is None else ""
    show(f"next: pip install -e '{target}[test]' && python -m pytest {target} {check}".rstrip())
    return int(Exit.OK)


def _of_template(kind: str, name: str) -> dict[str, str]:
    from erniecore.api.testing import entries
    from erniecore_conformance.scaffold.generate import check_name, render
    from erniecore_conformance.scaffold.kinds import TEMPLATES

    check_name(kind, name, {entry.name for entry in entries(kind)} | _commands(kind) if kind in TEMPLATES else ())
    return render(kind, name)


def _of_file(source: Path, name: str | None) -> tuple[str, str, dict[str, str]]:
    """Kind, name and files of a package made of ``source``."""
    from erniecore.api.testing import open_plugin_file
    from erniecore_conformance.scaffold.from_file import default_name, render

    with open_plugin_file(source) as plugins:
        called = name or default_name(source, plugins)
        return next(iter(plugins.values())).kind, called, render(source, plugins, called)


def _commands(kind: str) -> set[str]:
    """Names of the core's own commands, which no plugin can have."""
    return set(core_commands()) if kind == "command" else set()
