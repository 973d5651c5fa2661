"""Every line of ``events.jsonl`` has the fields that ``erniecore.api.events`` documents, and no others; and what the engine emits
anywhere is documented there.
"""

import ast
import json
from pathlib import Path
from typing import get_type_hints

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError

import erniecore
from erniecore.api.events import EVENTS, OPEN, metrics
from erniecore.errors import Preempted

CORE = Path(erniecore.__file__).parent


def checked(event):
    """Raises ``ValidationError`` for a field that is missing, of another type or not documented. Strict: no conversions."""
    kind = EVENTS[event["event"]]
    closed = type(kind.__name__, (), {"__pydantic_config__": ConfigDict(extra="forbid", strict=True)})
    kind.__pydantic_config__ = closed.__pydantic_config__
    known = {k: v for k, v in event.items() if k in get_type_hints(kind)} if event["event"] in OPEN else event
    TypeAdapter(kind).validate_json(json.dumps(known))


def test_the_events_of_a_run_that_was_stopped_and_ended_early_are_as_documented(runner, home):
    settings = {"train.max_steps": "6", "eval.every": "1", "data.eval": home / "eval.jsonl", "eval.best": "loss"}
    settings |= {"eval.patience": "1", "eval.min_change": "100", "train.learning_rate": "1e-9"}
    with pytest.raises(Preempted):
        runner.run(**settings, **{"run.until": "1"})
    out = runner.run(**settings).out
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    for event in events:
        checked(event)
    assert {e["event"] for e in events} >= {
        "run_start",
        "step",
        "eval",
        "checkpoint",
        "early_stop",
        "export",
        "run_end",
    }
    step = next(e for e in events if e["event"] == "step")
    assert set(metrics(step)) >= {"loss", "lr", "grad_norm", "tokens_per_s"}
    assert not {"tokens", "seconds", "step", "eta"} & set(metrics(step))


def test_a_field_too_many_or_too_few_is_found():
    stop = {"event": "early_stop", "time": 1.0, "step": 1, "total_steps": 2, "reason": "enough"}
    checked(stop)
    for wrong in ({**stop, "more": 1}, {k: v for k, v in stop.items() if k != "reason"}, {**stop, "step": "1"}):
        with pytest.raises(ValidationError):
            checked(wrong)


def calls():
    """(file, name of the event, names of the fields) of each call of ``emit`` in the core."""
    for file in sorted(CORE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit"
            if named and node.args and isinstance(node.args[0], ast.Constant):
                yield file.name, node.args[0].value, [k.arg for k in node.keywords if k.arg]


def test_the_core_emits_nothing_else():
    found = list(calls())
    assert {name for _, name, _ in found} == set(EVENTS)
    for file, name, fields in found:
        unknown = [] if name in OPEN else set(fields) - set(get_type_hints(EVENTS[name]))
        assert not unknown, f"{file}: {name} has {unknown}"
