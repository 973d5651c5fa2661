"""One compiled chat template: renders, or says what went wrong and in which line. Standard library and jinja2 only.

It runs in this process for templates of our own, and in ``render_server.py`` for all others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from erniecore_text.jinja_env import FILE_NAME, MAX_TEXT, ChatEnvironment, TemplateLimit
from erniecore_text.verbatim_proof import is_verbatim

#: kinds of faults: the source does not compile; the template refuses a conversation; it fails on one; it does what none may;
#: it takes too much time or memory
SYNTAX, REFUSED, FAILED, LIMIT, RESOURCES = "syntax", "refused", "failed", "limit", "resources"
#: characters of a fault's text
_MAX_FOUND = 400


class RenderFault(Exception):
    """Why there is no text.

    Attributes:
        kind: one of the above. line: of the template; 0: not known. found: what happened, in words.
    """

    def __init__(self, kind: str, line: int, found: str) -> None:
        super().__init__(kind, line, found[:_MAX_FOUND])
        self.kind, self.line, self.found = kind, line, found[:_MAX_FOUND]


class Rendering:
    """A template in this process.

    Args:
        prefix: of sentinels; those that ``tojson`` writes end with J instead of R. variables: what every rendering sees.

    Raises:
        RenderFault: the source does not compile.
    """

    def __init__(self, source: str, prefix: str, variables: Mapping[str, Any]) -> None:
        bare = re.compile(f"{prefix}([0-9]+)R")
        self._variables = dict(variables)
        self._environment = ChatEnvironment(finish_json=lambda text: bare.sub(rf"{prefix}\1J", text))
        try:
            self._template = self._environment.load_source(source)
            #: texts of messages are written as they are and never looked at
            self.verbatim = is_verbatim(ChatEnvironment().parse(source))
        except TemplateSyntaxError as error:
            raise RenderFault(SYNTAX, error.lineno, error.message or "") from error
        except RecursionError as error:
            raise RenderFault(SYNTAX, 0, "too many brackets, blocks or operators inside of each other") from error
        except (TemplateError, SyntaxError, ValueError, OverflowError, TypeError, LookupError) as error:
            raise RenderFault(SYNTAX, 0, str(error)) from error

    def text(self, messages: list[dict[str, Any]], tools: Any, asked: Mapping[str, Any]) -> str:
        """A rendering; ``asked``: further variables. Raises ``RenderFault``."""
        self._environment.start()
        try:
            text: str = self._template.render(**self._variables, messages=messages, tools=tools, **asked)
        except RecursionError as error:
            raise RenderFault(LIMIT, line_of(error.__traceback__), "calls inside of each other without end") from error
        except MemoryError as error:
            raise RenderFault(RESOURCES, line_of(error.__traceback__), "it needs too much memory") from error
        except TemplateLimit as error:
            raise RenderFault(LIMIT, line_of(error.__traceback__), str(error)) from error
        except TemplateError as error:
            raise RenderFault(REFUSED, line_of(error.__traceback__), error.message or "") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
            raise RenderFault(FAILED, line_of(error.__traceback__), str(error)) from error
        if len(text) > MAX_TEXT:
            raise RenderFault(LIMIT, 0, f"it writes {len(text)} characters, more than {MAX_TEXT}")
        return text


def line_of(trace: TracebackType | None) -> int:
    """The innermost line of the template in a traceback; 0: none."""
    line = 0
    while trace is not None:
        names = trace.tb_frame.f_globals
        if trace.tb_frame.f_code.co_filename == FILE_NAME:
            template = names.get("__jinja_template__")  # jinja2 has put in the template's own lines where it is gone
            line = template.get_corresponding_lineno(trace.tb_lineno) if template else trace.tb_lineno
        trace = trace.tb_next
    return line
