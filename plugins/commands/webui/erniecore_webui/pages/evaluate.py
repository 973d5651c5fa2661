"""Evaluate: ``ernie eval`` of a model, ``--compare`` of two, tasks of lm-eval; past results with their intervals."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError
from erniecore_webui.actions import ERNIE
from erniecore_webui.choices import plugin_name, plugin_names
from erniecore_webui.measures import Measure, measures, span
from erniecore_webui.rendering import form, page, site_of
from erniecore_webui.site import Site
from erniecore_webui.tasks import Task

_RESULTS, _OFFERED = 30, 300
_COMMANDS = ("eval", "lm-eval")
#: fields that are counts, with the option each is
_COUNTS = {"limit": "--limit", "max_seq_len": "--max-seq-len", "max_new_tokens": "--max-new-tokens"}


def show(request: Request) -> Response:
    """The form, and the results of what was started here."""
    site = site_of(request)
    tasks = [
        task for task in site.tasks.all() if task.argv[len(ERNIE) : len(ERNIE) + 1] and _command(task) in _COMMANDS
    ]
    return page(
        request, "evaluate_results.html" if "hx-request" in request.headers else "evaluate.html", current="evaluate",
        offered=list(site.models.found())[:_OFFERED], model=request.query_params.get("model", ""),
        data=request.query_params.get("data", ""),
        results=[(task, *_result(task)) for task in tasks[:_RESULTS]], methods=plugin_names("method"),
        has_tasks="lm-eval" in plugin_names("command"),
    )  # fmt: skip


def _command(task: Task) -> str:
    return task.argv[len(ERNIE)]


def _result(task: Task) -> tuple[list[Measure], tuple[float, float]]:
    """What it measured, and the range of its plot."""
    found = measures(task.output(1 << 20)) if task.state == "done" else []
    return found, span(found)


async def start(request: Request) -> Response:
    """Queue an evaluation."""
    site, given = site_of(request), {key: [v.strip() for v in values] for key, values in (await form(request)).items()}
    models = [place for place in given.get("model", []) if place][:2]
    if not models:
        raise UsageError("no model is chosen", where="model")
    for place in models:
        site.models.path(place)
    one = {key: values[0] for key, values in given.items()}
    command = _tasks(site, one, models) if one.get("tasks") else _rows(site, one, models)
    task = site.tasks.add([*ERNIE, *command, "--json"], " ".join([command[0], *models]))
    return RedirectResponse(f"/evaluate#{task.name}", 303)


def _rows(site: Site, given: dict[str, str], models: list[str]) -> list[str]:
    data = ["--data", site.models.place(site.data_file(given.get("data", "")))]
    method = plugin_name("method", given.get("method", "sft"))
    more = ["--method", method, *(["--generate"] if given.get("generate") else [])]
    named = ["--model", models[0]] if len(models) == 1 else ["--compare", *models]
    return ["eval", *named, *data, *more, *_counts(given)]


def _counts(given: dict[str, str]) -> list[str]:
    found: list[str] = []
    for name, option in _COUNTS.items():
        value = given.get(name, "")
        if value and not (value.isascii() and value.isdecimal() and len(value) < 10):
            raise UsageError("this is no number", where=name, found=value, expected="a whole number")
        found += [option, value] if value else []
    return found


def _tasks(site: Site, given: dict[str, str], models: list[str]) -> list[str]:
    names = [name.strip() for name in given["tasks"].split(",")]
    if len(models) > 1 or any(not name.replace("_", "").replace("-", "").isalnum() or name[0] == "-" for name in names):
        raise UsageError("these are no tasks for one model", where="tasks", found=given["tasks"],
                         expected="one model, and names of tasks with commas between them")  # fmt: skip
    limit = _counts({"limit": given.get("limit", "")})
    include = given.get("include", "")
    more = ["--include-path", site.models.place(site.directory(include))] if include else []
    return ["lm-eval", "--model", models[0], "--tasks", ",".join(names), *more, *limit]


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [Route("/evaluate", show), Route("/evaluate/start", start, methods=["POST"])]
