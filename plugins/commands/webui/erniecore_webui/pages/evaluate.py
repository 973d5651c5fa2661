"""Evaluate: ``ernie eval`` of a model, ``--compare`` of two, tasks of lm-eval; results that are kept, compared and deleted."""

from __future__ import annotations

from itertools import pairwise
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError
from erniecore_webui import results
from erniecore_webui.actions import ERNIE
from erniecore_webui.choices import part_of, plugin_name, plugin_names
from erniecore_webui.rendering import form, page, site_of
from erniecore_webui.results import RESULT, SAMPLES
from erniecore_webui.site import Site
from erniecore_webui.tasks import Task

_ROWS, _OFFERED = 20, 300
_COMMANDS = ("eval", "lm-eval")
#: fields that are counts, with the option each is
_COUNTS = {"limit": "--limit", "max_seq_len": "--max-seq-len", "max_new_tokens": "--max-new-tokens"}


def show(request: Request) -> Response:
    """The form, the results that are kept, and the commands that have none yet; only these where htmx asks."""
    site = site_of(request)
    tasks = [
        task for task in site.tasks.all() if task.argv[len(ERNIE) : len(ERNIE) + 1] and _command(task) in _COMMANDS
    ]
    entries: list[tuple[float, Task | str]] = [(changed, name) for name, changed in results.names(site)]
    entries += [(task.created, task) for task in tasks if task.state != "done"]
    part = part_of(request, sorted(entries, key=lambda item: -item[0]), _ROWS)
    commands = {_out(task): task for task in tasks}
    return page(
        request, "evaluate_results.html" if "hx-request" in request.headers else "evaluate.html", current="evaluate",
        offered=list(site.models.found())[:_OFFERED], model=request.query_params.get("model", ""),
        second=request.query_params.get("second", ""),
        data=request.query_params.get("data", ""), files=list(site.data.found())[:_OFFERED],
        commands=commands, number=part.number, last=part.last,
        rows=[(None, item) if isinstance(item, Task) else (results.read_if_there(site, item), None) for _, item in part.rows],
        going=any(task.state in ("waiting", "starting", "running") for task in tasks), methods=plugin_names("method"),
        has_tasks="lm-eval" in plugin_names("command"), undo=request.query_params.get("undo", ""),
        query=lambda **more: "?" + urlencode(more),
    )  # fmt: skip


def _command(task: Task) -> str:
    return task.argv[len(ERNIE)]


def _out(task: Task) -> str:
    """The name of the result that a task writes."""
    found = next((value for option, value in pairwise(task.argv) if option == "--out"), "")
    return found.removesuffix(f"/{RESULT}").rpartition("/")[2]


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
    return _queue(site, command, *models, one.get("tasks") or one["data"])


def _queue(site: Site, command: list[str], *named: str) -> Response:
    """Queue a command whose results are kept; where it measures one model, with what each row got."""
    out = results.new_place(site, *named)
    kept = ["--out", site.models.place(out / RESULT)]
    kept += [] if "--compare" in command else ["--samples", site.models.place(out / SAMPLES)]
    site.tasks.add([*ERNIE, *command, *kept], f"{command[0]} {out.name}")
    return RedirectResponse(f"/evaluate#{out.name}", 303)


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


async def compare(request: Request) -> Response:
    """Queue the comparison of two results, row by row: which is better by more than chance."""
    site, chosen = site_of(request), (await form(request)).get("result", [])
    found = [results.read(site, name) for name in chosen]
    if len(found) != 2 or not all(result.has_samples for result in found):
        raise UsageError("these cannot be compared", where="result", found=", ".join(chosen),
                         expected="two results of one model each")  # fmt: skip
    a, b = sorted(found, key=lambda result: result.changed)
    files = [site.models.place(results.path_of(site, result.name) / SAMPLES) for result in (a, b)]
    return _queue(site, ["eval", "--compare", *files], a.name, b.name)


async def delete(request: Request) -> Response:
    """Move results into the trash; the page then offers to undo it."""
    site, chosen = site_of(request), (await form(request)).get("result", [])
    paths = [results.path_of(site, name) for name in chosen]
    moved = [(await run_in_threadpool(site.trash.put, path)).name for path in paths]
    return RedirectResponse("/evaluate?" + urlencode({"undo": ",".join(moved)} if moved else {}), 303)


async def restore(request: Request) -> Response:
    """Bring results back from the trash."""
    site = site_of(request)
    for name in (await form(request)).get("name", [""])[0].split(","):
        await run_in_threadpool(site.trash.restore, name)
    return RedirectResponse("/evaluate", 303)


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [
        Route("/evaluate", show),
        Route("/evaluate/start", start, methods=["POST"]),
        Route("/evaluate/compare", compare, methods=["POST"]),
        Route("/evaluate/delete", delete, methods=["POST"]),
        Route("/evaluate/restore", restore, methods=["POST"]),
    ]
