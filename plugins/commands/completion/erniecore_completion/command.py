"""``ernie completion``: the script with which a shell completes commands, options and plugins, printed or installed."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from erniecore.api.command import show


class Shell(str, Enum):
    """Shells that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="Your shell.")],
    install: Annotated[
        bool, typer.Option("--install", help="Write it where the shell finds it, below your home.")
    ] = False,
) -> None:
    """Let a shell complete commands, options and plugin names: print the script for it, or install it."""
    from typer import _completion_shared as scripts  # Typer's scripts

    names = {"prog_name": "ernie", "complete_var": "_ERNIE_COMPLETE", "shell": shell.value}
    if not install:
        show(scripts.get_completion_script(**names))
        return
    _, path = scripts.install(**names)
    show(f"installed in {path}; open a new terminal")
