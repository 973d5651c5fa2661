"""typer's usage errors in our shape: the nearest option, the value that is missing, the setting that was typed as an option."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from erniecore.errors import UsageError

#: typer's usage errors, whichever click it is built on (it carries its own since 0.26)
CLICK_ERROR: type[Any] = typer.BadParameter.__mro__[2]
#: and what it hands to a shell that completes a word
COMPLETION_ITEM: Any = import_module(f"{CLICK_ERROR.__module__.rpartition('.')[0]}.shell_completion").CompletionItem


def usage_error(error: Any) -> UsageError:
    """What to say for an error of typer's own."""
    message = " ".join(str(error.format_message()).split()).split(" (Possible options")[0].rstrip(".")
    context, option = getattr(error, "ctx", None), str(getattr(error, "option_name", None) or "")
    close = list(getattr(error, "possibilities", None) or ())
    setting = _setting(context, option)
    return UsageError(
        message[:1].lower() + message[1:],
        fix=_with_value(context, option) or setting or (f"did you mean {close[0]}?" if close else ""),
        next=f"{context.command_path} --help" if context is not None else "ernie --help",
    )


def _with_value(context: Any, option: str) -> str:
    """For an option of the command that lacks its value: how it is typed."""
    parameters = context.command.params if context is not None else ()
    named = next((p for p in parameters if option in p.opts), None)
    return f"write {option} {named.metavar or 'VALUE'}" if named is not None else ""


def _setting(context: Any, option: str) -> str:
    """For a setting that was typed as an option of a command that takes settings."""
    parameters = context.command.params if context is not None else ()
    if not option or not any("SECTION.KEY" in (p.metavar or "") for p in parameters):
        return ""
    from erniecore_catalog.known import synonyms

    from erniecore.config.core import CORE_SECTIONS
    from erniecore.config.problems import Known

    keys = [f"{section}.{key}" for section, cls in CORE_SECTIONS.items() for key in cls.model_fields]
    known = Known([*keys, *synonyms().values()])
    key = known.suggest(option.lstrip("-").replace("-", "_"))
    return f"settings are written as {key}=VALUE" if key else ""
