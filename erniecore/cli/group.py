"""Command groups that import a command only when it is typed, and that know the nearest name.

The table of the core's commands lives in ``app.py``; further ones come from ``erniecore.commands`` entry points.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from erniecore.errors import PluginBroken, UsageError, nearest

#: ``-h`` everywhere; inherited by every subcommand.
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command lives (``module:attribute``) and its line in the help."""

    target: str
    summary: str


class WordsCommand(TyperCommand):
    """A command whose repeatable options also take several words: ``--data a.jsonl b.jsonl``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, after repeating the option before each further word."""
        many = {o for p in self.params if getattr(p, "multiple", False) for o in p.opts if o.startswith("--")}
        return super().parse_args(ctx, spread_words(args, many))


def spread_words(args: Sequence[str], options: Collection[str]) -> list[str]:
    """``--data a b --x`` as ``--data a --data b --x``; settings (``k=v``), YAML files and options end the list."""
    result: list[str] = []
    current, taken = "", False
    for i, word in enumerate(args):
        if word == "--":
            return [*result, *args[i:]]
        if word.startswith("-") and word != "-":
            current, taken = (word if word in options else ""), False
        elif current and taken:
            if "=" in word or word.endswith((".yaml", ".yml")):
                current = ""
            else:
                result.append(current)
        elif current:
            taken = True
        result.append(word)
    return result


class NearestGroup(TyperGroup):
    """A group whose unknown subcommands are an error with the nearest name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does; raises ``UsageError`` for an unknown subcommand."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            close = nearest(name, known)
            raise UsageError(
                f"no such command: {ctx.command_path} {name}",
                expected="one of " + ", ".join(known),
                fix=f"did you mean `{ctx.command_path} {close}`?" if close else "",
                next=f"{ctx.command_path} --help",
            )
        return super().resolve_command(ctx, args)


class LazyGroup(NearestGroup):
    """A group over a table of :class:`Lazy` commands and the installed command plugins."""

    def __init__(self, *args: Any, table: Mapping[str, Lazy] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table: dict[str, Lazy] = dict(table or {})

    def list_commands(self, ctx: Any) -> list[str]:
        """The core's commands in the order of the table, then those of plugins by name."""
        return [*self.table, *sorted(_plugin_commands() - set(self.table))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return one command; ``None`` when nobody has that name."""
        if cmd_name in self.table:
            module, _, attribute = self.table[cmd_name].target.partition(":")
            return as_command(getattr(import_module(module), attribute), cmd_name)
        if cmd_name in _plugin_commands():
            from erniecore import registry

            entry = registry.find("command", cmd_name)
            found = registry.load_object(entry)
            if not (isinstance(found, typer.Typer) or callable(found)):
                raise PluginBroken(f"command {cmd_name!r} is not a typer app or function", where=entry.origin())
            return as_command(found, cmd_name)
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One line per command, without importing any."""
        rows = [(name, lazy.summary) for name, lazy in self.table.items()]
        for name in sorted(_plugin_commands() - set(self.table)):
            from erniecore import registry

            rows.append((name, f"(from {registry.find('command', name).distribution})"))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def new_group(help: str, **kwargs: Any) -> typer.Typer:
    """The Typer app of a command with subcommands; ``-h`` works, errors are ours, no rich, no completion options."""
    return typer.Typer(
        help=help,
        cls=NearestGroup,
        context_settings=CONTEXT,
        no_args_is_help=kwargs.pop("no_args_is_help", True),
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        **kwargs,
    )


def as_command(found: typer.Typer | Callable[..., object], name: str) -> Any:
    """A click command from a Typer app (a group, or an app with one command) or a plain function."""
    app = found
    if not isinstance(app, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(name, cls=WordsCommand, context_settings=CONTEXT)(found)
    hook = sys.excepthook
    command = typer.main.get_command(app)
    sys.excepthook = hook
    command.name = name
    return command


def _plugin_commands() -> set[str]:
    from erniecore import registry

    return {entry.name for entry in registry.entries("command")}
