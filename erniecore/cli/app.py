"""The ``ernie`` program: the table of commands, and how every error becomes an exit code.

Commands live in ``erniecore/cli/<name>.py`` and are imported only when typed: ``ernie --help`` imports none.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer
from erniecore_system import mapped

import erniecore
from erniecore import signals
from erniecore.cli import render
from erniecore.cli.group import CONTEXT, Lazy, LazyGroup
from erniecore.cli.usage import CLICK_ERROR, usage_error
from erniecore.errors import (
    EnvironmentFault,
    ErnieError,
    Exit,
    MemoryFault,
    Preempted,
    first_line,
    says_out_of_memory,
    shorten,
)

COMMANDS: dict[str, Lazy] = {
    "run": Lazy("erniecore.cli.run:run", "Train, evaluate and save (or --demo, or --dry-run)."),
    "plugins": Lazy("erniecore.cli.plugins:app", "What is installed: models, methods, devices, formats, callbacks."),
    "data": Lazy(
        "erniecore.cli.nested:data", "Check, show and count data files; the token cache; build token files, convert."
    ),
    "model": Lazy("erniecore.cli.nested:model", "Create and check model directories."),
    "version": Lazy("erniecore.cli.version:version", "Versions, and a block for bug reports."),
}

#: how a shell's script asks for completions (`ernie completion`)
_COMPLETE = "_ERNIE_COMPLETE"


def _print_version(asked: bool) -> None:
    if asked:
        render.show(f"erniecore {erniecore.__version__}")
        raise typer.Exit


def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors; works after any command.")] = (
        False
    ),
    plugin: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="FILE", help="A Python file with plugins; works after any command."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Train, align, compress and deploy ERNIE 4.5 models on PaddlePaddle, with plugins."""


def build_cli() -> Any:
    """The root command, a click group."""
    app = typer.Typer(
        cls=LazyGroup,
        context_settings=CONTEXT,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    hook = sys.excepthook
    group = typer.main.get_group(app)
    sys.excepthook = hook
    assert isinstance(group, LazyGroup)
    group.name, group.table = "ernie", dict(COMMANDS)
    return group


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. ``argv`` are the words after ``ernie``."""
    args = list(sys.argv[1:] if argv is None else argv)
    own = args[: args.index("--")] if "--" in args else args
    debug = "--debug" in own or os.environ.get("ERNIE_DEBUG", "") not in ("", "0")
    as_json = "--json" in own
    args = [w for i, w in enumerate(args) if not (w == "--debug" and i < len(own))]
    report = partial(_report, debug=debug, as_json=as_json)
    with mapped.reported_by(report):
        return _run(args, report)


def _run(args: list[str], report: Callable[[BaseException], int]) -> int:
    """The exit code of the command ``args``; ``report`` shows an error and gives its code."""
    if _COMPLETE in os.environ:  # a shell asks what may come next
        from typer._completion_classes import completion_init

        completion_init()
    try:
        with _plugin_files(args, args.index("--") if "--" in args else len(args)) as arguments:
            result = build_cli().main(args=arguments, prog_name="ernie", standalone_mode=False)
        return result if isinstance(result, int) and not isinstance(result, bool) else int(Exit.OK)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # click makes an exit of it before we see it
            return report(end.__context__)
        return end.code if isinstance(end.code, int) else int(Exit.OK if end.code is None else Exit.BUG)
    except BaseException as error:
        if _COMPLETE in os.environ:  # there is nothing to complete behind a word that is wrong
            return int(Exit.OK)
        found = None if isinstance(error, Preempted) else signals.outcome(error, args)
        if found is None and isinstance(error, typer.Abort):
            found = int(Exit.INTERRUPTED), "interrupted"
        if found is None:
            return report(error)
        render.note(found[1])
        return found[0]


@contextmanager
def _plugin_files(args: list[str], own: int) -> Iterator[list[str]]:
    """``args`` without ``--plugin FILE``; the files are active within the block. ``own``: words before ``--``."""
    before = os.environ.get("ERNIE_PLUGIN_FILES")
    try:
        if any(word.startswith("--plugin") for word in args[:own]):
            from erniecore import plugin_files

            args = plugin_files.from_words(args, own)
        yield args
    finally:  # settings may have named files, too
        if os.environ.get("ERNIE_PLUGIN_FILES") != before:
            from erniecore import plugin_files

            plugin_files.write(before or "")


def _report(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Print an error that ended a command; returns its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        render.show(str(error))
        return int(Exit.OK)
    if isinstance(error, CLICK_ERROR):
        error = usage_error(error)
    full = getattr(error, "errno", None) in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE)
    if isinstance(error, OSError) and (error.filename or full) and not isinstance(error, BrokenPipeError):
        refused = EnvironmentFault(
            "the operating system refuses this file",
            where=shorten(str(error.filename or ""), 200)[1:-1],
            found=error.strerror or "",
        )
        refused.__cause__, error = error, refused
    if says_out_of_memory(error):
        cause, error = error, MemoryFault("out of memory", found=first_line(error), fix="use a smaller model")
        error.__cause__ = cause
    if debug:
        traceback.print_exception(error)
    if isinstance(error, ErnieError):
        render.show_error(error, as_json=as_json)
        return int(error.exit_code)
    if isinstance(error, BrokenPipeError):  # the reader went away, e.g. `ernie … | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - keeps the interpreter's last flush quiet
        return int(Exit.OK)
    bug = ErnieError(
        f"{type(error).__name__}: {error}",
        fix="this is a bug in erniecore or in a plugin; --debug shows the traceback",
        next="ernie version --bug-report",
    )
    render.show_error(bug, as_json=as_json)
    return int(Exit.BUG)
