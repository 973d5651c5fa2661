"""The help texts of all commands of this repository, for the generated reference. Works with any click that typer brings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from erniecore_catalog import known

from erniecore.cli.app import COMMANDS, build_cli


def help_pages(width: int = 100) -> Iterator[tuple[str, str]]:
    """(command line, help text) of ``ernie`` and of every command and subcommand, in the order of the help."""

    def visit(command: Any, path: str, parent: Any) -> Iterator[tuple[str, str]]:
        name = path.split()[-1]
        context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=width)
        yield path, command.get_help(context).rstrip()
        for child in command.list_commands(context) if hasattr(command, "list_commands") else ():
            if parent is not None or child in COMMANDS or known.summary_of(child):
                yield from visit(command.get_command(context, child), f"{path} {child}", context)

    return visit(build_cli(), "ernie", None)
