"""The sandbox that chat templates run in: as transformers runs them, with limits on work and on memory.

A template comes with a model directory and is somebody else's program. It cannot reach attributes, files or mutable
state; its loops count against a budget, and the usual ways to a huge text are barred, with errors that say so. What else
takes long or needs memory is ended from outside (``render_server.py``). Not the place that knows messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

#: passes through loop bodies per rendering
MAX_STEPS = 200_000
#: characters of any text that a template builds, and of its output
MAX_TEXT = 64_000_000
MAX_RANGE = 100_000
#: of the compiled code, by which its lines are found in a traceback
FILE_NAME = "<chat template>"

#: text methods that cannot build a text much longer than what they are given
_TEXT_METHODS = frozenset(
    """capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace
    istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip
    split splitlines startswith strip swapcase title upper""".split()  # noqa: SIM905
)
_REMOVED_FILTERS = ("center", "pprint", "urlize", "xmlattr", "filesizeformat", "wordwrap", "random")

#: text with places for values, none of them wide
_FORMAT = re.compile(r"(?:[^%]|%%|%[-+0 #]?\d{0,2}(?:\.\d{1,2})?[sdfegxX])*")


class TemplateLimit(SecurityError):
    """A template did more than it may."""


class _Metered(NodeTransformer):
    """Count every pass of a loop and check every concatenation, in the template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("_step", []), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("_concat", list(node.nodes))


def _call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load"), arguments, [], None, None)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """``trim_blocks`` and ``lstrip_blocks`` on, ``raise_exception`` and ``tojson`` as in transformers.

    Args:
        finish_json: applied to what ``tojson`` returns (the caller marks texts that were escaped).
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, finish_json: Callable[[str], str] = str) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self._finish_json = finish_json
        self._steps = 0
        for name in _REMOVED_FILTERS:
            self.filters.pop(name, None)
        self.filters["tojson"] = self._tojson
        self.filters["format"] = _formatted
        self.globals.pop("lipsum", None)
        self.globals.update(
            raise_exception=_raise_exception, range=_range, _step=self._step, _concat=lambda *parts: _joined(parts)
        )

    def load_source(self, source: str) -> Any:
        """Compile a template; raises ``jinja2.TemplateSyntaxError``."""
        return self.template_class.from_code(self, _compiled(source), self.make_globals(None))

    def start(self) -> None:
        """A new rendering: the full budget again."""
        self._steps = 0

    def _step(self) -> str:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateLimit(f"the loops of the template ran more than {MAX_STEPS} times")
        return ""

    def _tojson(self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        if isinstance(indent, int) and indent > 16:
            raise TemplateLimit("tojson: indent is at most 16")
        known = {k: options[k] for k in ("separators", "sort_keys") if k in options}
        return self._finish_json(json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **known))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of texts, only methods that cannot blow up."""
        if isinstance(obj, str) and attr not in _TEXT_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Operators that can build something huge from something small."""
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise TemplateLimit(f"templates have no operator {operator!r} for these values")
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    _limit(len(sequence) * max(times, 0))
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _limit(len(left) + len(right))
        return super().call_binop(context, operator, left, right)


@lru_cache(maxsize=16)
def _compiled(source: str) -> CodeType:
    """The same code in every environment: what differs between them is looked up when it runs."""
    environment = ChatEnvironment()
    tree = _Metered().visit(environment.parse(source))
    tree.set_environment(environment)
    return environment.compile(tree, filename=FILE_NAME)


def _formatted(pattern: str, *values: Any) -> str:
    """The filter ``format``, for patterns whose widths and precisions are of two digits at most."""
    if not _FORMAT.fullmatch(pattern):
        raise TemplateLimit(f"format: {pattern[:40]!r} is not supported")
    return str(pattern) % values


def _limit(size: int) -> None:
    if size > MAX_TEXT:
        raise TemplateLimit(f"the template builds more than {MAX_TEXT} characters")


def _joined(parts: tuple[Any, ...]) -> str:
    texts = [str(p) for p in parts]
    _limit(sum(map(len, texts)))
    return "".join(texts)


def _range(*arguments: int) -> range:
    numbers = range(*arguments)
    if len(numbers) > MAX_RANGE:
        raise TemplateLimit(f"range() of a template has at most {MAX_RANGE} items")
    return numbers


def _raise_exception(message: Any) -> NoReturn:
    """Also of what is no text: jinja2 keeps it as it is, and nobody could send or show it."""
    raise TemplateError(str(message))
