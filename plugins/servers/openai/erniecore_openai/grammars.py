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


def grammar_of(term: str) -> str:
    """The grammar of the texts of one term."""
    return f"start: {term}"


def schema_term(schema: Json | bool) -> str:
    """The JSON that ``schema`` describes. Raises ``BadGrammar``."""
    term = _json(schema)
    problem = _problem(grammar_of(term))
    if problem:
        raise BadGrammar(*_located(schema, problem))
    return term


def regex_term(pattern: str) -> str:
    """The texts that match ``pattern`` as a whole, in Rust's syntax, without look-around and back references.

    Raises ``BadGrammar``.
    """
    grammar = str(LLMatcher.grammar_from_regex(pattern))
    problem = _problem(grammar)
    if problem:
        raise BadGrammar(problem.partition("(in regex): ")[2] or problem)
    (part,) = json.loads(grammar)["grammars"]
    return str(part["lark_grammar"]).removeprefix("start: ")


def choice_term(choices: Sequence[str]) -> str:
    """One of a few texts."""
    return " | ".join(map(_text, choices))


def calls_grammar(
    functions: Sequence[tuple[str, str]], special: Mapping[str, int], *, opened: bool = False, several: bool = False,
    otherwise: str = "",
) -> str:  # fmt: skip
    """The grammar of tool calls as chat templates write them.

    Args:
        functions: names, and terms of the arguments. special: special tokens by their texts.
        opened: one call, behind ``<tool_call>``. several: one or more calls. otherwise: term of an answer without calls.
    """
    begin, end = (f"<[{special[tag]}]>" if tag in special else _text(tag) for tag in ("<tool_call>", "</tool_call>"))
    names = [_text(json.dumps(name, ensure_ascii=False)) for name, _ in functions]
    rules = [f'f{i}: {names[i]} ", \\"arguments\\": " {term}' for i, (_, term) in enumerate(functions)]
    tools = " | ".join(f"f{i}" for i in range(len(functions)))
    rules += [f"tool: {tools}", f'body: "\\n{{\\"name\\": " tool "}}\\n" {end}', f"call: {begin} body"]
    rules += ["NL: /\\n{1,2}/", "calls: NL? call " + ("(NL call)* NL?" if several else "NL?")]
    start = "body" if opened else "calls | answer" if otherwise else "calls"
    rules += [f"answer: {otherwise}"] if otherwise else []
    return "\n".join([f"start: {start}", *rules])


def _text(text: str) -> str:
    """``text`` as a term of a grammar."""
    return json.dumps(text, ensure_ascii=False)


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
            if _problem(grammar_of(_json(own))) == problem:
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
