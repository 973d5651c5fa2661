"""The page ``docs/reference/python.md``: every name of the package ``erniecore``, with its arguments, its errors and an example
that a test executes (``docs/examples/names/erniecore.txt``)."""

from __future__ import annotations

import inspect
from typing import Any

import api_pages

import erniecore

_INTRO = """# Python

The names of the package `erniecore`, for scripts and notebooks; [how to use them](../how-to/python.md). Plugins import
[`erniecore.api`](api/README.md). The tests execute every example on this page, in this order and in one process; `base` is the
directory of a small model, `train.jsonl` has conversations.

What goes wrong is an `ErnieError` of [`erniecore.api`](api/README.md): `code` is one of [these](errors.md), `exit_code` what
the command line would end with."""


def markdown() -> str:
    """The whole page, without the notice."""
    lines, examples = [_INTRO], api_pages.sessions("erniecore")
    for name in examples:
        value = getattr(erniecore, name)
        lines += ["", f"## {name}", "", *_body(name, value), *api_pages.session_block(examples[name])]
    return "\n".join(lines) + "\n"


def _body(name: str, value: Any) -> list[str]:
    if not isinstance(value, type):
        return [*api_pages.signature(name, value), "", inspect.getdoc(value) or ""]
    made = inspect.signature(value.__init__)
    made = made.replace(parameters=list(made.parameters.values())[1:], return_annotation=made.empty)
    lines = [*api_pages.signature(name, _Called(made)), "", inspect.getdoc(value) or ""]
    for member, found in vars(value).items():
        if isinstance(found, property):
            lines += ["", f"### {name}.{member}", "", inspect.getdoc(found) or ""]
        elif inspect.isfunction(found) and not member.startswith("_"):
            lines += [
                "",
                f"### {name}.{member}()",
                "",
                *api_pages.signature(member, found),
                "",
                inspect.getdoc(found) or "",
            ]
    return lines


class _Called:
    """Something that is called with a signature."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.__signature__ = signature

    def __call__(self) -> None: ...
