"""Several runs beside each other: curves over each other, settings that differ, evaluations with their intervals.

Evaluations are those of the runs themselves, and the kept results of their models (``ernie eval``): of each model alone, where
the same data has the same line, and of one run's model against another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from erniecore_runs.record import number
from erniecore_runs.settings import hyperparameters
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from erniecore.api.events import COUNTS
from erniecore_webui import results
from erniecore_webui.measures import Measure, span
from erniecore_webui.pages.run_facts import last_events
from erniecore_webui.rendering import page, site_of
from erniecore_webui.results import Result
from erniecore_webui.site import Site

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
        recent=site.index.summaries(site.index.found()[:20]), kept=kept(site, paths), pairs=pairs(site, paths),
        to_evaluate=_to_evaluate(site, paths),
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


@dataclass(frozen=True, slots=True)
class Line:
    """One measure on the same data: of each run the newest result of one of its models, with its name, or None."""

    data: str
    group: str
    name: str
    cells: list[tuple[Measure, Result] | None]

    @property
    def range(self) -> tuple[float, float]:
        """Of the plot of its intervals."""
        return span([cell[0] for cell in self.cells if cell])


def kept(site: Site, paths: list[Path]) -> list[Line]:
    """Results of single models of the runs, by data and measure."""
    lines: dict[tuple[str, str, str], list[tuple[Measure, Result] | None]] = {}
    for result in results.of_models(site, lambda place: _owner(site, place, paths) is not None):
        owner = _owner(site, result.models[0], paths) if len(result.models) == 1 else None
        for found in result.measures if owner is not None else ():
            cells = lines.setdefault((result.data, found.group, found.name), [None] * len(paths))
            if owner is not None and cells[owner] is None:
                cells[owner] = (found, result)
    return [Line(*key, cells) for key, cells in lines.items()]


def pairs(site: Site, paths: list[Path]) -> list[Result]:
    """Results that compare a model of one of the runs with that of another, the newest first."""
    known = {r.name: r for name, _ in results.names(site) if (r := results.read_if_there(site, name)) is not None}

    def owners(result: Result) -> set[int | None]:
        # rows of two results may have been compared, whose models these are
        places = (known[name].models[0] if name in known and known[name].models else name for name in result.models)
        return {_owner(site, place, paths) for place in places}

    compared = ((result, owners(result)) for result in known.values() if len(result.models) == 2)
    return [result for result, found in compared if len(found) == 2 and None not in found]


def _owner(site: Site, place: str, paths: list[Path]) -> int | None:
    """Which of the runs a model is of, by its place."""
    return next((i for i, path in enumerate(paths) if place.startswith(site.models.place(path) + "/")), None)


def _to_evaluate(site: Site, paths: list[Path]) -> str:
    """The query of the page that evaluates the first two models that the runs have trained; ``""``: there is none yet."""
    trained = [site.models.place(path / "model") for path in paths if (path / "model" / "config.json").is_file()]
    return urlencode(list(zip(("model", "second"), trained, strict=False)))


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [Route("/compare", compare)]
