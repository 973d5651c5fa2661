"""New run: settings as a form and as YAML, which are two views of one text, with what ``ernie plan`` says of them while they are
written; then the run, at once or in the queue."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError
from erniecore.api.settings import RUN_KINDS
from erniecore_webui.data_files import is_rows
from erniecore_webui.draft_plan import layouts, needs_of, problems_of_rows, steps_from_epochs
from erniecore_webui.drafts import Told, Verdict, command_of, judged, last_judged, start, told_of
from erniecore_webui.index import run_id
from erniecore_webui.rendering import form, fragment, page, site_of
from erniecore_webui.run_form import Chosen, Group, chosen, field_of, groups, shown
from erniecore_webui.site import Site
from erniecore_webui.starts import STARTS, all_recipes, cloned, imported, recipe_text, start_text, toolkit_of
from erniecore_webui.tasks import AHEAD
from erniecore_webui.texts import language_of
from erniecore_webui.texts import text as translated
from erniecore_webui.trainable import offered, plugin_of
from erniecore_webui.yaml_edits import changed, flat, read, with_names

_OFFERED = 200


def show(request: Request) -> Response:
    """The page, with the settings of another run (``from``), of a file (``file``), of a recipe of a model (``recipe``) or of a
    kind of training (``start``)."""
    site, query = site_of(request), request.query_params
    data = sorted(site.data.found(), key=lambda place: not is_rows(place))[:_OFFERED]
    if chosen_data := query.get("data", ""):
        data.insert(0, site.models.place(site.data_file(chosen_data)))
    begin, source, recipe = query.get("start", ""), query.get("from", ""), query.get("recipe", "")
    begin = begin if begin in STARTS else STARTS[0]
    models = offered(site.models, with_adapter=begin in ("lora", "dpo"))
    file = query.get("file", "")
    if source:
        path = site.index.path(source)
        text, stem = cloned(path), path.name
    elif file:
        text, stem = (
            site.settings.text(file),
            re.sub(r"[^A-Za-z0-9._-]", "-", file.rpartition("/")[2].partition(".")[0]),
        )
    elif recipe:
        text, stem = recipe_text(recipe, next(iter(models), ""), next(iter(data), "")), recipe.replace("/", "-")
    else:
        about = translated(language_of(request), f"new.begin.{begin}")
        text, stem = start_text(begin, about, next(iter(models), ""), next(iter(data), "")), begin
    try:
        settings = read(text)
    except UsageError:  # the page says so when it asks
        settings = {}
    form_groups = groups(_chosen(site, settings))
    return page(
        request, "new.html", current="new", text=text, source=source, file=file, recipe=recipe, starts=STARTS,
        begin="" if source or file or recipe else begin, name=_free(site, stem or "run"), models=models, data=data,
        groups=form_groups, values=shown(form_groups, settings), recipes=all_recipes(),
        files=list(site.settings.found())[:_OFFERED], tasks=[t for t in site.tasks.all() if t.state in AHEAD],
    )  # fmt: skip


def _free(site: Site, stem: str) -> str:
    """A name that no run has: ``stem-2`` where there is ``stem``."""
    base = re.sub(r"-\d+$", "", stem)
    names = (f"{base}-{number}" for number in range(1, 10_000))
    return next((name for name in names if not (site.root / name).exists()), base)


def _chosen(site: Site, settings: Mapping[str, Any]) -> Chosen:
    """The plugins of settings; which model it is may say its directory."""
    place = str(flat(settings).get("model.path", ""))
    found = site.models.found().get(place)
    return chosen(settings, plugin_of(found.path) if found else "")


async def check(request: Request) -> Response:
    """What the page shows of a text, after fields have changed it: ``changes`` is a list of pairs, key and what was typed."""
    given = {key: values[0] for key, values in (await form(request)).items()}
    return await run_in_threadpool(_checked, request, given)


def _checked(request: Request, given: dict[str, str]) -> Response:
    site, text = site_of(request), given.get("text", "").replace("\r\n", "\n")
    told: dict[str, list[Told]] = {}
    try:
        before = groups(_chosen(site, read(text)))
        for key, value in _changes(given.get("changes", "")):
            try:
                if field_of(before, key) is None:  # it may belong to a plugin that another change has chosen
                    before = groups(_chosen(site, read(text)))
                text = _with_change(text, before, key, value.strip())
            except UsageError as error:
                told.setdefault(key, []).append(told_of(error.fields()))
        settings = read(text)
    except UsageError as error:
        return JSONResponse({"text": text, "errors": {}, "general": [asdict(told_of(error.fields()))], "values": None})
    if toolkit := toolkit_of(settings):
        return JSONResponse({"text": text, "errors": {}, "general": [], "values": None, "toolkit": toolkit})
    plugins = _chosen(site, settings)
    form_groups = groups(plugins)
    verdict = Verdict(errors=told) if told else judged(site, text)
    errors, general = _placed(form_groups, verdict)
    answer: dict[str, Any] = {
        "text": text, "values": shown(form_groups, settings), "general": general, "errors": errors,
        "command": _command(site, text, given.get("name", "")), "plan": _plan(request, verdict.plan, None),
        "plugins": plugins.text(), "count": bool(verdict.plan),
    }  # fmt: skip
    if answer["plugins"] != given.get("plugins", ""):
        answer["fields"] = fragment(request, "new_fields.html", groups=form_groups, values=answer["values"])
    return JSONResponse(answer)


def _changes(text: str) -> list[tuple[str, str]]:
    try:
        found = json.loads(text or "[]")
        return [(str(key), str(value)) for key, value in found]
    except (ValueError, TypeError) as error:
        raise UsageError("these are no changes", found=text[:80], expected="a list of pairs as JSON") from error


def _with_change(text: str, form_groups: list[Group], key: str, value: str) -> str:
    key = f"{key}.name" if key in RUN_KINDS else key  # as arguments of commands have it
    field = field_of(form_groups, key)
    if field is None or field.key != key:
        raise UsageError("there is no such setting", where=key)
    if field.names_plugins:
        return with_names(text, field.path[0], field.names(value))
    return changed(text, field.path, field.yaml(value) if value else None)


def _placed(form_groups: list[Group], verdict: Verdict) -> tuple[dict[str, list[dict[str, str]]], list[dict[str, str]]]:
    """Errors by the field at which they stand, and those that no field has."""
    errors: dict[str, list[dict[str, str]]] = {}
    general = [asdict(told) for told in verdict.general]
    for key, found in verdict.errors.items():
        field = field_of(form_groups, key)
        for told in found:
            about = asdict(told)
            if field is None or field.key != key:
                about["text"] = f"{key}: {told.text}"
            (general if field is None else errors.setdefault(field.key, [])).append(about)
    return errors, general


def _command(site: Site, text: str, name: str) -> str:
    place = site.models.place(site.root / (name or "NAME"))
    return command_of(text, site.models.place(site.root / "settings" / f"{name or 'NAME'}.yaml"), place)


def _plan(request: Request, plan: Mapping[str, Any], counted: int | None) -> str:
    """The numbers of a plan as HTML, with what is free here. ``counted``: steps that come from epochs."""
    if not plan:
        return ""
    estimate, forecast = plan.get("estimate") or {}, plan.get("forecast") or {}
    steps, seconds = plan.get("max_steps") or counted, forecast.get("step_seconds")
    return fragment(
        request, "new_plan.html", plan=plan, needs=needs_of(plan), steps=steps, counted=counted is not None,
        measured=seconds is not None,
        disk=estimate.get("checkpoints") or plan.get("checkpoint"),
        seconds=seconds * steps if isinstance(seconds, int | float) and isinstance(steps, int) else None,
    )  # fmt: skip


async def steps(request: Request) -> Response:
    """What is wrong with the rows, and the plan with the steps that come from epochs: rows are tokenized for both, which typing
    need not wait for."""
    text = (await form(request)).get("text", [""])[0].replace("\r\n", "\n")
    return JSONResponse(await run_in_threadpool(_counted, request, text))


def _counted(request: Request, text: str) -> dict[str, Any]:
    site = site_of(request)
    plan = last_judged(site, text).plan
    if not plan:
        return {"plan": "", "errors": {}, "general": []}
    settings = read(text)
    form_groups = groups(_chosen(site, settings))
    errors, general = _placed(form_groups, problems_of_rows(site, text))
    if errors or general or plan.get("max_steps"):
        return {"plan": "", "errors": errors, "general": general}
    field = field_of(form_groups, "train.epochs")
    epochs = flat(settings).get("train.epochs", field.default if field else "1")
    steps = steps_from_epochs(site, text, plan, float(epochs))
    return {"plan": _plan(request, plan, steps), "errors": {}, "general": []}


async def propose_layouts(request: Request) -> Response:
    """Layouts over several accelerators, as settings that can be applied."""
    given = {key: values[0] for key, values in (await form(request)).items()}
    text, number, kind = (given.get(name, "").strip() for name in ("text", "number", "kind"))
    rows, problems = await run_in_threadpool(layouts, site_of(request), text.replace("\r\n", "\n"), number, kind)
    html = fragment(request, "new_layouts.html", rows=rows) if not problems else ""
    return JSONResponse({"html": html, "general": [asdict(told) for told in problems]})


async def convert(request: Request) -> Response:
    """Settings of another toolkit as settings of ours, with what became of each key."""
    given = {key: values[0] for key, values in (await form(request)).items()}
    site, text = site_of(request), given.get("text", "").replace("\r\n", "\n")
    done = await run_in_threadpool(imported, site, text, without_unknown=given.get("without_unknown") == "true")
    html = fragment(request, "new_import.html", done=done) if done.toolkit else ""
    return JSONResponse({"text": done.text, "html": html, "general": [asdict(told) for told in done.problems]})


async def begin(request: Request) -> Response:
    """Start the run, or put it into the queue."""
    given = {key: values[0] for key, values in (await form(request)).items()}
    text, name = given.get("text", "").replace("\r\n", "\n"), given.get("name", "").strip()
    when = given.get("when", "now")
    verdict = await run_in_threadpool(judged, site_of(request), text)
    if not verdict.plan:
        raise UsageError("these settings cannot be used", found=str(verdict))
    after = [when.removeprefix("after:")] if when.startswith("after:") else []
    when = "queue" if after else when if when in ("queue", "front") else "now"
    task = await run_in_threadpool(start, site_of(request), text, name, when, after)
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
    """For the table of pages: GET shows, POST changes something (or says what it was given is worth)."""
    return [
        Route("/new", show),
        Route("/new/started", started),
        Route("/new/check", check, methods=["POST"]),
        Route("/new/steps", steps, methods=["POST"]),
        Route("/new/layouts", propose_layouts, methods=["POST"]),
        Route("/new/import", convert, methods=["POST"]),
        Route("/new/start", begin, methods=["POST"]),
    ]
