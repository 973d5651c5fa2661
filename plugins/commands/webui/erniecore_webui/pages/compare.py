"""Several runs beside each other: curves over each other, settings that differ, evaluations with their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erniecore_runs.record import number
from erniecore_runs.settings import hyperparameters
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from erniecore.api.events import COUNTS
from erniecore_webui.pages.run_facts import last_events
from erniecore_webui.rendering import page, site_of

MOST = 8
#: half a 95 % interval of a normal mean, in standard errors
_Z95 = 1.96


def compare(request: Request) -> Response:
    """The runs of the address ``?run=A&run=B``; without any, the list of runs to choose from."""
    site = site_of(request)
    ids = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST]
    paths = [site.index.path(id_) for id_ in ids]
    return page(
        request, "compare.html", current="compare", runs=[site.index.summary(path) for path in paths], most=MOST,
        differences=setting_differences(paths), evaluations=evaluations(paths),
        recent=site.index.summaries(site.index.found()[:20]),
    )  # fmt: skip


def setting_differences(paths: list[Path]) -> list[tuple[str, list[str]]]:
    """Keys whose values differ, with the value in each run; ``""`` where a run has none."""
    tables = [{s.key: s.value for part in hyperparameters(path) for s in part} for path in paths]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = [(key, [table.get(key, "") for table in tables]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def evaluations(paths: list[Path]) -> list[tuple[str, list[dict[str, Any] | None]]]:
    """Metric -> of each run the last value with its step and, where the evaluation tells its error, a 95 % interval."""
    found = [last_events(path).evaluation for path in paths]
    names = dict.fromkeys(
        key for event in found for key in event
        if key not in COUNTS and not key.endswith("_stderr") and number(event[key]) is not None
    )  # fmt: skip
    return [(name, [_measured(event, name) for event in found]) for name in names]


def _measured(event: dict[str, Any], name: str) -> dict[str, Any] | None:
    value = number(event.get(name))
    if value is None:
        return None
    error = number(event.get(f"{name}_stderr"))
    return {"value": value, "step": event.get("step"), "half": None if error is None else _Z95 * error}


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [Route("/compare", compare)]
