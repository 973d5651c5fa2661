"""From the fields of a request to the constraint of its completions, or to what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from erniecore_generation.sampling import Constraint
from llguidance import LLMatcher

from erniecore.api import Json, UsageError
from erniecore.api.files import parse_json
from erniecore_openai.constraints import GrammarConstraint
from erniecore_openai.errors import ApiError
from erniecore_openai.generation import as_api_error
from erniecore_openai.grammars import BadGrammar, choice_grammar, regex_grammar, schema_grammar
from erniecore_openai.schemas.chat import ChatRequest
from erniecore_openai.schemas.common import SamplingFields
from erniecore_openai.state import ServedModel

_OBJECT: Json = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Form:
    """The form that answers must have; every completion follows it from its beginning."""

    model: ServedModel
    matcher: LLMatcher

    def constraint(self, stop_ids: frozenset[int], *, thinking: bool = False) -> Constraint:
        """For one completion; ``thinking``: it begins inside of the reasoning, which is free."""
        return GrammarConstraint(self.model.vocabulary, self.matcher.deep_copy(), stop_ids, thinking=thinking)


def form_of(model: ServedModel, request: SamplingFields) -> Form | None:
    """What the fields ask for; None: any text. It takes a while where the grammar is large.

    Raises:
        ApiError: several fields that ask for a form, or one that no text has or that cannot be computed; ``param`` is the place.
    """
    asked = _asked(request)
    if len(asked) > 1:
        names = " and ".join(name for name, _, _ in asked)
        raise ApiError(400, f"{names}: a completion has one form", param=asked[1][0], code="invalid_value")
    for name, kind, value in asked:
        try:
            return Form(model, model.vocabulary.matcher(_grammar(kind, value)))
        except BadGrammar as error:
            place = f"{name}{error.place}"
            raise ApiError(400, f"{place}: {error}", param=place, code="invalid_value") from None
        except UsageError as error:
            raise as_api_error(error) from error
    return None


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


def _grammar(kind: str, value: Any) -> str:
    if kind == "regex":
        return regex_grammar(value)
    if kind == "choice":
        return choice_grammar(value)
    return schema_grammar(_OBJECT if kind == "json_object" else _schema(value))


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
