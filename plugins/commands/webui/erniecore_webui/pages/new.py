"""New run: settings as a form and as YAML, which are two views of one text, with what ``ernie plan`` says of them while they are
written; then the run, at once or in the queue."""

from __future__ import annotations

import re
import time
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError
from erniecore.api.installation import host_memory
from erniecore_webui.drafts import STARTS, Verdict, cloned, command_of, judged, start, start_text
from erniecore_webui.index import run_id
from erniecore_webui.rendering import form, fragment, page, site_of
from erniecore_webui.run_form import Group, chosen, field_of, groups
from erniecore_webui.site import Site
from erniecore_webui.texts import language_of
from erniecore_webui.texts import text as translated
from erniecore_webui.yaml_edits import changed, flat, read

_OFFERED = 200


def show(request: Request) -> Response:
    """The page, with the settings of another run (``from``), of a kind of training (``start``) or none."""
    site, query = site_of(request), request.query_params
    data = list(site.data.found())[:_OFFERED]
    if chosen_data := query.get("data", ""):
        data.insert(0, site.models.place(site.data_file(chosen_data)))
    models = [place for place, found in site.models.found().items() if not found.is_adapter][:_OFFERED]
    begin = query.get("start", "")
    if source := query.get("from", ""):
        path = site.index.path(source)
        text, stem = cloned(path), path.name
    else:
        begin = begin if begin in STARTS else STARTS[0]
        about = translated(language_of(request), f"new.begin.{begin}")
        text, stem = start_text(begin, about, next(iter(models), ""), next(iter(data), "")), begin
    values = flat(read(text))
    form_groups = groups(chosen(values))
    return page(
        request, "new.html", current="new", text=text, source=source, begin=begin, starts=STARTS, name=_free(site, stem),
        models=models, data=data, groups=form_groups, values=_shown(form_groups, values), places=site.tasks.places,
    )  # fmt: skip


def _free(site: Site, stem: str) -> str:
    """A name that no run has: ``stem-2`` where there is ``stem``."""
    base = re.sub(r"-\d+$", "", stem)
    names = (f"{base}-{number}" for number in range(1, 10_000))
    return next((name for name in names if not (site.root / name).exists()), base)


def _shown(form_groups: list[Group], values: dict[str, Any]) -> dict[str, str]:
    """Key -> what its field shows, for the keys that are set."""
    fields = (field for group in form_groups for field in group.fields)
    return {field.key: field.shown(values[field.key]) for field in fields if field.key in values}


async def check(request: Request) -> Response:
    """What the page shows of a text, after a field has changed it."""
    given = {key: values[0] for key, values in (await form(request)).items()}
    return await run_in_threadpool(_checked, request, given)


def _checked(request: Request, given: dict[str, str]) -> Response:
    site, text, key = site_of(request), given.get("text", "").replace("\r\n", "\n"), given.get("key", "")
    told = []
    try:
        before = groups(chosen(flat(read(text))))
        if key and (field := field_of(before, key)) is not None:
            value = given.get("value", "").strip()
            text = changed(text, key, field.yaml(value) if value else None)
        values = flat(read(text))
    except UsageError as error:
        told, values = [str(error)], {}
    if told:
        return JSONResponse({"text": text, "errors": {}, "general": told, "values": None})
    plugins = chosen(values)
    form_groups = groups(plugins)
    verdict = judged(site, text)
    seen = {field.key for group in form_groups for field in group.fields}
    lost = [f"{name}: {message}" for name, message in verdict.errors.items() if name not in seen]
    answer: dict[str, Any] = {
        "text": text, "values": _shown(form_groups, values), "general": [*verdict.general, *lost],
        "errors": {name: message for name, message in verdict.errors.items() if name in seen},
        "command": _command(site, text, given.get("name", "")), "plan": _plan(request, verdict),
        "plugins": "|".join(f"{kind}={name}" for kind, name in sorted(plugins.items())),
    }  # fmt: skip
    if answer["plugins"] != given.get("plugins", ""):
        answer["fields"] = fragment(request, "new_fields.html", groups=form_groups, values=answer["values"])
    return JSONResponse(answer)


def _command(site: Site, text: str, name: str) -> str:
    place = site.models.place(site.root / (name or "NAME"))
    return command_of(text, site.models.place(site.root / "settings" / f"{name or 'NAME'}.yaml"), place)


def _plan(request: Request, verdict: Verdict) -> str:
    """The numbers of a plan as HTML; on a CPU with what is free here."""
    plan = verdict.plan
    if not plan:
        return ""
    estimate = plan.get("estimate") or {}
    seconds, steps = (plan.get("forecast") or {}).get("step_seconds"), plan.get("max_steps")
    here = plan.get("device") == "cpu"
    need = estimate.get("process_memory") if here else estimate.get("peak_memory")
    memory = host_memory() if here else None
    free = memory.available if memory else None
    return fragment(
        request, "new_plan.html", plan=plan, need=need, free=free, steps=steps,
        disk=estimate.get("checkpoints") or plan.get("checkpoint"),
        seconds=seconds * steps if isinstance(seconds, int | float) and isinstance(steps, int) else None,
    )  # fmt: skip


async def begin(request: Request) -> Response:
    """Start the run, or put it into the queue."""
    given = {key: values[0] for key, values in (await form(request)).items()}
    text, name = given.get("text", "").replace("\r\n", "\n"), given.get("name", "").strip()
    when = given.get("when", "now")
    verdict = await run_in_threadpool(judged, site_of(request), text)
    if not verdict.plan:
        problems = "; ".join([*(f"{key}: {message}" for key, message in verdict.errors.items()), *verdict.general])
        raise UsageError("these settings cannot be used", found=problems)
    task = await run_in_threadpool(start, site_of(request), text, name, when if when in ("queue", "front") else "now")
    return RedirectResponse(f"/new/started?task={task}", 303)


def started(request: Request) -> Response:
    """The task until its run is there; then on to the run."""
    site = site_of(request)
    task = site.tasks.get(request.query_params.get("task", ""))
    there = (site.root / task.run / "events.jsonl").is_file()
    if there and "hx-request" in request.headers:
        return Response(headers={"HX-Redirect": f"/run/{run_id(task.run)}"})
    if there:
        return RedirectResponse(f"/run/{run_id(task.run)}", 303)
    seconds = time.time() - (task.started or task.created)
    return page(request, "new_started.html", current="new", task=task, seconds=seconds)


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something (or, for ``check``, says what it was given is worth)."""
    return [
        Route("/new", show),
        Route("/new/started", started),
        Route("/new/check", check, methods=["POST"]),
        Route("/new/start", begin, methods=["POST"]),
    ]
