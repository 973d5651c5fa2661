"""From JSON schemas, regular expressions, choices and tool calls to a grammar of llguidance, which says what is wrong with them.

JSON is written on one line, with a space behind each colon and comma, as chat templates write it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher

from erniecore.api import Json

#: How JSON is written; among the keywords of a schema, where llguidance looks for it.
_FORM: Json = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_DEFINITIONS = ("$defs", "definitions")


class BadGrammar(ValueError):
    """A constraint that cannot be met or is not understood. ``place``: where in the schema, as ``.properties.a``."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


def schema_grammar(schema: Json | bool) -> str:
    """The grammar of the JSON that ``schema`` describes. Raises ``BadGrammar``."""
    grammar = f"start: {_json(schema)}"
    problem = _problem(grammar)
    if problem:
        raise BadGrammar(*_located(schema, problem))
    return grammar


def regex_grammar(pattern: str) -> str:
    """The grammar of the texts that match ``pattern`` as a whole, in Rust's syntax, without look-around and back references.

    Raises ``BadGrammar``.
    """
    grammar = str(LLMatcher.grammar_from_regex(pattern))
    problem = _problem(grammar)
    if problem:
        raise BadGrammar(problem.partition("(in regex): ")[2] or problem)
    return grammar


def choice_grammar(choices: Sequence[str]) -> str:
    """The grammar of a few texts."""
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _json(schema: Json | bool) -> str:
    """``schema`` as a term of a grammar."""
    whole = {"allOf": [schema]} if isinstance(schema, bool) else schema
    return f"%json {json.dumps({**whole, 'x-guidance': _FORM}, ensure_ascii=False)}"


def _problem(grammar: str) -> str:
    """What llguidance says against a grammar, on one line; empty: nothing."""
    lines = str(LLMatcher.validate_grammar(grammar)).splitlines()
    # what follows shows the grammar, which nobody has seen
    told = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(("^", "1 |", "|"))]
    text = " ".join(told).removeprefix("WARNING: ") if not (lines and lines[0].startswith("WARNING")) else ""
    return text.partition("failed to compile JSON schema: ")[2] or text


def _located(schema: Json | bool, problem: str) -> tuple[str, str]:
    """The problem and the innermost part of the schema that has it."""
    place = ""
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema} if isinstance(schema, dict) else {}
    while True:
        for name, part in _parts(schema):
            if not isinstance(part, dict | bool):
                return "a schema is an object, true or false", place + name
            own = part if isinstance(part, bool) else {**definitions, **part}
            if _problem(f"start: {_json(own)}") == problem:
                schema, place = part, place + name
                break
        else:
            return problem, place


def _parts(schema: Json | bool) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside of one, with their places."""
    if not isinstance(schema, dict):
        return
    for name in ("properties", "patternProperties", *_DEFINITIONS):
        inner = schema.get(name)
        for key, part in inner.items() if isinstance(inner, Mapping) else ():
            yield f".{name}.{key}", part
    for name in ("anyOf", "allOf", "oneOf", "prefixItems"):
        several = schema.get(name)
        for index, part in enumerate(several if isinstance(several, list) else ()):
            yield f".{name}[{index}]", part
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield f".{name}", schema[name]
