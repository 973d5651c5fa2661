"""Requests, events and rows as JSON, exactly: what is read is equal to what was written, floats and infinities too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from erniecore_generation.engine.requests import (
    Event,
    Finished,
    GenerationRequest,
    PromptScored,
    TokenLogprob,
    Tokens,
)
from erniecore_generation.sampling import Sampling
from erniecore_openai.constraints import Grammar, GrammarConstraint, GrammarForm, Vocabulary

from erniecore.api import EnvironmentFault, ErnieError, Json, UsageError

#: objects of one process: constraints travel as their forms, images in shared memory (``shared.py``)
_OBJECTS = ("constraint", "media")
_FIELDS = tuple(field.name for field in fields(GenerationRequest) if field.name not in _OBJECTS)
#: grammars that a process keeps
_GRAMMARS = 64

_REMEDY = ("where", "found", "expected", "fix")


def check_portable(request: GenerationRequest) -> None:
    """Raise ``UsageError`` for a request with something that cannot go to another process."""
    if request.constraint is not None and not isinstance(request.constraint, GrammarConstraint):
        raise UsageError(
            "the disaggregated server takes constraints that are grammars", where="constraint",
            found=type(request.constraint).__name__, fix="ask a server of one process: --backend openai",
        )  # fmt: skip


def request_json(request: GenerationRequest) -> Json:
    """A request without its images."""
    found = {name: getattr(request, name) for name in _FIELDS}
    constraint = request.constraint
    found["form"] = asdict(constraint.form) if isinstance(constraint, GrammarConstraint) else None
    found["sampling"], found["stop_ids"] = asdict(request.sampling), sorted(request.stop_ids)
    return found


class Grammars:
    """Makes the constraints of requests; grammars that were asked for lately are kept. Used by one thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._made: Callable[[str], Grammar] = lru_cache(maxsize=_GRAMMARS)(vocabulary.grammar)

    def constraint(self, given: Json) -> GrammarConstraint | None:
        """That of a request in JSON, before its first token. Raises ``BadGrammar``."""
        if given["form"] is None:
            return None
        form = GrammarForm(**{**given["form"], "stop_ids": tuple(given["form"]["stop_ids"])})
        return GrammarConstraint.of(self._vocabulary, self._made(form.grammar), form)


def request_fields(given: Json) -> dict[str, Any]:
    """The keywords of ``GenerationRequest``, or of a class with more fields, but for constraint and images."""
    found = {name: given[name] for name in _FIELDS}
    bias = tuple((token, value) for token, value in given["sampling"]["logit_bias"])
    found["sampling"] = Sampling(**{**given["sampling"], "logit_bias": bias})
    found["ids"], found["stop_ids"] = tuple(given["ids"]), frozenset(given["stop_ids"])
    return found


def logprob_json(entry: TokenLogprob | None) -> list[Any] | None:
    """A log-probability as ``[token, logprob, top]``."""
    return None if entry is None else [entry.token, entry.logprob, entry.top]


def logprob_from(given: list[Any] | None) -> TokenLogprob | None:
    """The reverse of :func:`logprob_json`."""
    return None if given is None else TokenLogprob(given[0], given[1], tuple((t, p) for t, p in given[2]))


def event_json(event: Event) -> Json:
    """An event with its ``type``: ``tokens``, ``scored``, ``finished`` or ``failed``."""
    if isinstance(event, Tokens):
        scores = None if event.logprobs is None else [logprob_json(entry) for entry in event.logprobs]
        return {"type": "tokens", "ids": event.ids, "logprobs": scores}
    if isinstance(event, PromptScored):
        return {"type": "scored", "logprobs": [logprob_json(entry) for entry in event.logprobs]}
    if isinstance(event, Finished):
        return {"type": "finished", **asdict(event)}
    error = event.error
    told: dict[str, Any] = {"name": type(error).__name__, "usage": isinstance(error, UsageError)}
    if isinstance(error, ErnieError):
        parts = {"where": error.where, "found": error.found, "expected": error.expected, "fix": error.fix}
        return {"type": "failed", "error": {**told, "message": error.message, **parts}}
    return {"type": "failed", "error": {**told, "message": str(error), **dict.fromkeys(_REMEDY, "")}}


def tokens_from(given: Json) -> Tokens:
    """The event of a message of type ``tokens``."""
    scores = None if given["logprobs"] is None else tuple(_entry(entry) for entry in given["logprobs"])
    return Tokens(tuple(given["ids"]), scores)


def scored_from(given: Json) -> PromptScored:
    """The event of a message of type ``scored``."""
    return PromptScored(tuple(logprob_from(entry) for entry in given["logprobs"]))


def error_from(given: Json) -> ErnieError:
    """The error of a message of type ``failed``: the caller's, or one of the computation."""
    told = given["error"]
    parts = {name: told[name] for name in _REMEDY}
    if told["usage"]:
        return UsageError(told["message"], **parts)
    return EnvironmentFault(f"{told['name']}: {told['message']}", **parts)


def _entry(given: list[Any]) -> TokenLogprob:
    found = logprob_from(given)
    assert found is not None
    return found
