"""From the fields of a request to the constraint of its completions, or to what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from erniecore_generation.sampling import Constraint

from erniecore.api import Json, UsageError
from erniecore.api.files import parse_json
from erniecore_openai.constraints import CALL, Grammar, GrammarConstraint
from erniecore_openai.errors import ApiError
from erniecore_openai.generation import as_api_error
from erniecore_openai.grammars import BadGrammar, calls_grammar, choice_term, grammar_of, regex_term, schema_term
from erniecore_openai.schemas.chat import ChatRequest, Function
from erniecore_openai.schemas.common import SamplingFields
from erniecore_openai.state import ServedModel

_OBJECT: Json = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Form:
    """The form that answers must have.

    Attributes:
        trigger, once: as ``GrammarConstraint`` has them.
        answers: whether content has a form, so that it is shown as it is. forced: whether answers are calls and nothing else.
    """

    model: ServedModel
    grammar: Grammar
    trigger: bytes = b""
    once: bool = True
    answers: bool = True
    forced: bool = False

    def constraint(self, stop_ids: frozenset[int], *, thinking: bool = False) -> Constraint:
        """For one completion; ``thinking``: it begins inside of the reasoning, which is free."""
        options = {"thinking": thinking, "once": self.once}
        return GrammarConstraint(self.model.vocabulary, self.grammar, stop_ids, trigger=self.trigger, **options)


def form_of(model: ServedModel, request: SamplingFields, *, calls: bool = False) -> Form | None:
    """What the fields ask for; None: any text. It takes a while where the grammar is large.

    Args:
        calls: the request has tools, and they may be called.

    Raises:
        ApiError: several fields that ask for a form, or one that no text has or that cannot be computed; ``param`` is the place.
    """
    asked = _asked(request)
    if calls and isinstance(request, ChatRequest) and request.forces_calls:
        asked = [("tool_choice", "calls", request), *asked]
    if len(asked) > 1:
        names = " and ".join(name for name, _, _ in asked)
        raise ApiError(400, f"{names}: a completion has one form", param=asked[1][0], code="invalid_value")
    term = ""
    for name, kind, value in asked:
        if kind != "calls":
            with _refused(name):
                term = _term(kind, value)
                if not calls:
                    return Form(model, model.vocabulary.grammar(grammar_of(term)))
    if calls and isinstance(request, ChatRequest):
        with _refused("tools"):
            return _calls(model, request, term)
    return None


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """What is wrong with the field ``name``, for the client."""
    try:
        yield
    except BadGrammar as error:
        place = f"{name}{error.place}"
        raise ApiError(400, f"{place}: {error}", param=place, code="invalid_value") from None
    except UsageError as error:
        raise as_api_error(error) from error


def _calls(model: ServedModel, request: ChatRequest, otherwise: str) -> Form | None:
    """The form of answers that may or must be calls; None: nothing is asked of it."""
    choice, forced = request.tool_choice, request.forces_calls
    several = request.parallel_tool_calls and isinstance(choice, str)
    strict = any(tool.function.strict for tool in request.tools)
    if not (forced or otherwise or strict or not several):
        return None
    functions = [
        (tool.function.name, _arguments(tool.function, index, forced=forced))
        for index, tool in enumerate(request.tools)
        if isinstance(choice, str) or tool.function.name == choice.function.name
    ]
    free = not forced and not otherwise
    special = model.tokenizer.special_tokens
    grammar = calls_grammar(functions, special, opened=free, several=several, otherwise=otherwise)
    return Form(
        model, model.vocabulary.grammar(grammar), CALL if free else b"", once=not several, answers=bool(otherwise), forced=forced,
    )  # fmt: skip


def _arguments(function: Function, index: int, *, forced: bool) -> str:
    """The term of a function's arguments: of its schema if it is strict, or forced and does not say."""
    wanted = forced if function.strict is None else function.strict
    try:
        return schema_term({**_OBJECT, **function.parameters} if wanted else _OBJECT)
    except BadGrammar as error:
        raise BadGrammar(str(error), f"[{index}].function.parameters{error.place}") from None


def _asked(request: SamplingFields) -> list[tuple[str, str, Any]]:
    """Fields that ask for a form, with its kind and value."""
    found: list[tuple[str, str, Any]] = [
        (f"guided_{kind}", kind, value)
        for kind, value in (
            ("json", request.guided_json),
            ("regex", request.guided_regex),
            ("choice", request.guided_choice),
        )
        if value is not None
    ]
    outputs = request.structured_outputs
    if outputs is not None:
        values: dict[str, Any] = {"json": outputs.json_schema, "regex": outputs.regex, "choice": outputs.choice}
        values["json_object"] = outputs.json_object
        found += [(f"structured_outputs.{kind}", kind, value) for kind, value in values.items() if value is not None]
    answer = request.response_format if isinstance(request, ChatRequest) else None
    if answer is not None and answer.json_schema is not None:
        found.append(("response_format.json_schema.schema", "json", answer.json_schema.json_schema))
    elif answer is not None and answer.type == "json_object":
        found.append(("response_format", "json_object", True))
    return found


def _term(kind: str, value: Any) -> str:
    if kind == "regex":
        return regex_term(value)
    if kind == "choice":
        return choice_term(value)
    return schema_term(_OBJECT if kind == "json_object" else _schema(value))


def _schema(value: Json | str) -> Json | bool:
    """A schema that may be given as text."""
    if not isinstance(value, str):
        return value
    try:
        found = parse_json(value)
    except (ValueError, RecursionError):
        raise BadGrammar("must be a JSON schema, or its text") from None
    if not isinstance(found, dict | bool):
        raise BadGrammar("a schema is an object, true or false")
    return found
