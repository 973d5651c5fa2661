"""Command groups that import a command only when it is typed, and that know the nearest name.

The table of the core's commands lives in ``app.py``; further ones come from ``erniecore.commands`` entry points.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from erniecore_catalog.retired import current_flags
from typer.core import TyperCommand, TyperGroup

from erniecore.cli import render
from erniecore.cli.usage import CLICK_ERROR, COMPLETION_ITEM, require_finite
from erniecore.errors import PluginBroken, UsageError, nearest
from erniecore.signals import Preempted

#: ``-h`` everywhere; inherited by every subcommand.
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command lives (``module:attribute``) and its line in the help."""

    target: str
    summary: str


class MultiValueCommand(TyperCommand):
    """A command whose repeatable options take several values: ``--data a.jsonl b.jsonl``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace retired flags by their current names and repeat the option before each value, then parse as Typer does."""
        args, warnings = current_flags(args, {o for p in self.params for o in p.opts})
        for text in warnings:
            render.note(f"warning: {text}")
        many = {o for p in self.params if getattr(p, "multiple", False) for o in p.opts if o.startswith("--")}
        return super().parse_args(ctx, spread_values(args, many))


def spread_values(args: Sequence[str], options: Collection[str]) -> list[str]:
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
    """A group whose further subcommands come from command plugins, and whose unknown ones are an error with the nearest name.

    The entry point ``NAME`` of the group ``erniecore.commands`` is ``ernie NAME``; ``GROUP.NAME`` is ``ernie GROUP NAME``.
    """

    def own_commands(self, ctx: Any) -> list[str]:
        """The subcommands that the group itself has, in the order of its help."""
        return super().list_commands(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """The group's own commands, then those of plugins by name."""
        own = self.own_commands(ctx)
        return [*own, *sorted(_plugin_commands(ctx) - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return one command; ``None`` when nobody has that name."""
        if cmd_name in self.own_commands(ctx):
            return super().get_command(ctx, cmd_name)
        return _load(ctx, cmd_name) if cmd_name in _plugin_commands(ctx) else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does; raises ``UsageError`` for an unknown subcommand."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise _unknown(ctx, name, self.list_commands(ctx))
        found, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            require_finite(command)
        return found, command, rest

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Options and subcommands that begin with a word; no command is imported for it."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [*map(COMPLETION_ITEM, names), *TyperCommand.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: Any) -> Any:
        """As typer does; its errors know the command also where its parser does not say."""
        try:
            return super().invoke(ctx)
        except CLICK_ERROR as error:
            if error.ctx is None and (command := self.get_command(ctx, ctx.invoked_subcommand or "")):
                error.ctx = type(ctx)(command, info_name=ctx.invoked_subcommand, parent=ctx)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One line per command; those of plugins are listed without importing any."""
        rows = [(name, self.summary_of(ctx, name)) for name in self.own_commands(ctx)]
        rows += [(name, _plugin_summary(ctx, name)) for name in self.list_commands(ctx)[len(rows) :]]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def summary_of(self, ctx: Any, name: str) -> str:
        """The help line of an own command."""
        command = super().get_command(ctx, name)
        return command.get_short_help_str(limit=100) if command is not None else ""


class LazyGroup(NearestGroup):
    """A group over a table of :class:`Lazy` commands, imported when they are typed."""

    def __init__(self, *args: Any, table: Mapping[str, Lazy] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table: dict[str, Lazy] = dict(table or {})

    def invoke(self, ctx: Any) -> Any:
        """As typer does, which would turn Ctrl-C into an exit code without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Preempted(signal.SIGINT) from error

    def own_commands(self, ctx: Any) -> list[str]:
        """In the order of the table."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return one command; ``None`` when nobody has that name."""
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.table[cmd_name].target.partition(":")
        return as_command(getattr(import_module(module), attribute), cmd_name)

    def summary_of(self, ctx: Any, name: str) -> str:
        """The summary from the command table; the command is not imported."""
        return self.table[name].summary


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
        app.command(name, cls=MultiValueCommand, context_settings=CONTEXT)(found)
    hook = sys.excepthook
    command = typer.main.get_command(app)
    sys.excepthook = hook
    command.name = name
    return command


def _qualified(ctx: Any, name: str) -> str:
    """The entry point's name of a subcommand: ``plan``, or ``data.build`` within ``ernie data``."""
    return ".".join([*ctx.command_path.split()[1:], name])


def _plugin_commands(ctx: Any) -> set[str]:
    """Names of the subcommands that plugins add to the group of ``ctx``."""
    from erniecore import registry

    prefix = _qualified(ctx, "")
    names = (entry.name for entry in registry.entries("command"))
    return {rest for name in names if name.startswith(prefix) and "." not in (rest := name[len(prefix) :])}


def _plugin_summary(ctx: Any, name: str) -> str:
    """What is known of a command without importing it: our own by ``known.toml``, others by their distribution."""
    from erniecore_catalog import known

    from erniecore import registry

    qualified = _qualified(ctx, name)
    homes = " and ".join(entry.distribution for entry in registry.entries("command") if entry.name == qualified)
    return known.summary_of(qualified) or f"(from {homes})"


def _load(ctx: Any, name: str) -> Any:
    """The command of a plugin. Raises ``PluginBroken`` when it is neither a Typer app nor a function."""
    from erniecore import registry

    entry = registry.find("command", _qualified(ctx, name))
    found = registry.load_object(entry)
    if not (isinstance(found, typer.Typer) or callable(found)):
        raise PluginBroken(f"command {entry.name!r} is not a typer app or function", where=entry.origin())
    return as_command(found, name)


def _unknown(ctx: Any, name: str, names: Sequence[str]) -> UsageError:
    """The error for a subcommand that is not there: which distribution brings it, or the nearest name."""
    from erniecore_catalog import install_command, known

    home = known.home_of("command", _qualified(ctx, name))
    if home:
        fix, step = f"it comes with {home}", install_command(home)
        return UsageError(f"the command `{ctx.command_path} {name}` is not installed", fix=fix, next=step)
    close = nearest(name, [*names, *known.commands_in(_qualified(ctx, ""))])
    return UsageError(
        f"no such command: {ctx.command_path} {name}",
        expected="one of " + ", ".join(names) if names else "",
        fix=f"did you mean `{ctx.command_path} {close}`?" if close else "",
        next=f"{ctx.command_path} --help",
    )
