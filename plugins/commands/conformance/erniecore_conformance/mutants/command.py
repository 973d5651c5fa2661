"""Commands with one thing wrong."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from erniecore_conformance.mutants.mutant import Mutant
from erniecore_conformance.subjects import Command, Subject

helpless = typer.Typer(add_completion=False)


@helpless.command(add_help_option=False)
def no_help() -> None:
    """A command that has no help option of its own."""


heavy_help = typer.Typer(add_completion=False)


class Heavy(TyperCommand):
    """Imports paddle to write its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As usual, with a version."""
        import paddle

        formatter.write(f"paddle {paddle.__version__}; ")
        super().format_help(ctx, formatter)


@heavy_help.command(cls=Heavy)
def run() -> None:
    """A command that imports paddle to show its help text."""


takes_anything = typer.Typer(add_completion=False)


@takes_anything.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def anything() -> None:
    """Takes whatever options it is given and does nothing with them."""


def _subject(app: object, name: str) -> Subject:
    return Subject(Command.of(app, name.replace("_", "-")), "command", name.replace("_", "-"), f"{__name__}:{name}")


MUTANTS = (
    Mutant("command_shows_help", _subject(helpless, "helpless")),
    Mutant("command_help_is_light", _subject(heavy_help, "heavy_help")),
    Mutant("command_refuses_unknown_options", _subject(takes_anything, "takes_anything")),
)
