"""typer's usage errors in our shape: the nearest option, the value that is missing, the setting that was typed as an option;
and the numbers that it lets pass: infinity and NaN."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import typer

from erniecore.errors import UsageError

#: typer's usage errors, whichever click it is built on (it carries its own since 0.26)
CLICK_ERROR: type[Any] = typer.BadParameter.__mro__[2]
_CLICK = CLICK_ERROR.__module__.rpartition(".")[0]
#: what it hands to a shell that completes a word
COMPLETION_ITEM: Any = import_module(f"{_CLICK}.shell_completion").CompletionItem
_TYPES: Any = import_module(f"{_CLICK}.types")


class _Finite:
    """What a number of an option is beside click's: NaN is in each of its ranges."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """As click does; infinity and NaN are usage errors."""
        number = super().convert(value, param, ctx)  # type: ignore[misc]  # the class beside this one
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)  # type: ignore[attr-defined]
        return number


#: click's types of numbers, as we take them
_FINITE: dict[Any, Any] = {
    kind: type(kind.__name__, (_Finite, kind), {}) for kind in (_TYPES.FloatParamType, _TYPES.FloatRange)
}


def require_finite(command: Any) -> None:
    """Let the options of a command take finite numbers only."""
    for parameter in command.params:
        if finite := _FINITE.get(type(parameter.type)):
            kind = object.__new__(finite)
            kind.__dict__.update(vars(parameter.type))
            parameter.type = kind


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
