"""One run: live curves and numbers, log, settings with their sources, data report, checkpoints; stop, resume, export."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from erniecore_runs.record import row_statistics
from erniecore_runs.settings import hyperparameters
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from erniecore.api.files import read_json
from erniecore.api.runs import EVENTS_NAME
from erniecore_webui import results
from erniecore_webui.actions import ERNIE, Result, shown
from erniecore_webui.choices import plugin_names
from erniecore_webui.pages.run_facts import checkpoints, error_rows, last_events, samples
from erniecore_webui.rendering import field, form, page, site_of
from erniecore_webui.site import Site
from erniecore_webui.stream import live
from erniecore_webui.tasks import Task

#: what `ernie runs report` writes, and what a browser may do with it: it has styles, drawings and nothing else
REPORT = "report.html"
_REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
PARTS = ("charts", "log", "settings", "data", "checkpoints", "evaluations")
_LOG_BYTES = 64 << 10
_MOST = 1 << 26


def show(request: Request) -> Response:
    """The page of a run, with one of its parts."""
    site, part = site_of(request), request.path_params.get("part", "charts")
    if part not in PARTS:
        raise HTTPException(404)
    path = site.index.path(request.path_params["id"])
    summary = site.index.summary(path)
    events = last_events(path)
    facts: dict[str, Callable[[Path, Request], dict[str, Any]]] = {
        "charts": _no_facts, "log": _log, "settings": _settings, "data": _data, "checkpoints": _checkpoints,
        "evaluations": _evaluations,
    }  # fmt: skip
    return page(
        request, f"run_{part}.html", current="runs", run=summary, part=part, parts=PARTS, path=path,
        report_state=_report_state(path), start=events.start, end=events.end, events=events, command=_resume_command(site, path),
        place=_place(site, path), tasks=[t for t in site.tasks.all() if t.run == summary.run][:5],
        **facts[part](path, request),
    )  # fmt: skip


def _no_facts(path: Path, request: Request) -> dict[str, Any]:
    return {}


def _log(path: Path, request: Request) -> dict[str, Any]:
    names = sorted(entry.name for entry in (path / "logs").glob("*.log")) if (path / "logs").is_dir() else []
    name = request.query_params.get("file", names[0] if names else "")
    if name not in names:
        return {"names": names, "name": "", "lines": "", "size": 0}
    with (path / "logs" / name).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        return {"names": names, "name": name, "lines": file.read().decode(errors="replace"), "size": size}


def _settings(path: Path, request: Request) -> dict[str, Any]:
    chosen, defaults = hyperparameters(path)
    return {"chosen": chosen, "defaults": defaults}


def _data(path: Path, request: Request) -> dict[str, Any]:
    try:
        report = read_json(path / "data_report.json", _MOST)
    except (OSError, ValueError):
        report = None
    report = report if isinstance(report, dict) else {}
    return {"report": report, "rows": row_statistics(report), "errors": error_rows(report)}


def _checkpoints(path: Path, request: Request) -> dict[str, Any]:
    return {"checkpoints": checkpoints(path), "model": (path / "model" / "config.json").is_file()}


def _evaluations(path: Path, request: Request) -> dict[str, Any]:
    """What the model wrote while it was trained, and the kept results of models of this run."""
    site = site_of(request)
    own = site.models.place(path) + "/"
    return {
        "samples": samples(path, last_events(path).samples, request.query_params.get("step", "")),
        "results": results.of_models(site, lambda place: place.startswith(own)),
        "models": [place for place in site.models.found() if place.startswith(own)],
    }


def curves(request: Request) -> Response:
    """The thinned curves so far; ``loaded`` is the share of the events that was read, ``offset`` where to listen on, ``ahead``
    single steps of what was not read yet."""
    site = site_of(request)
    return JSONResponse(site.curves.read(site.index.path(request.path_params["id"])))


async def stream(request: Request) -> Response:
    """Live events from the last one that the browser has."""
    path = site_of(request).index.path(request.path_params["id"])
    offset = request.headers.get("last-event-id") or request.query_params.get("from", "0")
    return live(request, path, int(offset) if offset.isdecimal() and len(offset) < 19 else 0)


def log_file(request: Request) -> Response:
    """One rank's log from its beginning, as plain text."""
    path = site_of(request).index.path(request.path_params["id"])
    name = request.path_params["name"]
    if name not in {entry.name for entry in (path / "logs").glob("*.log")}:
        raise HTTPException(404)
    return FileResponse(path / "logs" / name, media_type="text/plain; charset=utf-8")


def _report_state(path: Path) -> str:
    """Of the report: ``whole`` (of all events), ``old`` (it can be made, and has to be), ``""`` (nothing makes one here)."""
    with suppress(OSError):
        if (path / REPORT).stat().st_mtime >= (path / EVENTS_NAME).stat().st_mtime:
            return "whole"
    return "old" if "report" in plugin_names("callback") else ""


def report(request: Request) -> Response:
    """The report as it was written last; with ``?download`` as a file to be sent."""
    path = site_of(request).index.path(request.path_params["id"])
    if not (path / REPORT).is_file():
        raise HTTPException(404)
    way = "attachment" if "download" in request.query_params else "inline"
    return FileResponse(
        path / REPORT, media_type="text/html; charset=utf-8", filename=f"{path.name}-{REPORT}", content_disposition_type=way,
        headers={"content-security-policy": _REPORT_POLICY},
    )  # fmt: skip


def _report(request: Request, action: str, checkpoint: str) -> Response:
    """Write the report of a run as it is now, and show it."""
    site = site_of(request)
    arguments = ["runs", "report", _place(site, site.index.path(request.path_params["id"]))]
    result = site.actions.ernie(*arguments)
    if result.code:
        return _told(request, arguments, result)
    return RedirectResponse(f"/run/{request.path_params['id']}/{REPORT}", 303)


def _place(site: Site, path: Path) -> str:
    """The directory as a command is given it: relative to where commands are started, if it is below."""
    return str(path.relative_to(site.home)) if path.is_relative_to(site.home) else str(path)


def _resume_command(site: Site, path: Path, *more: str) -> list[str]:
    place = _place(site, path)
    return ["ernie", "run", f"{place}/resolved.yaml", "--out", place, *more]


def resume(request: Request) -> Response:
    """Queue the command that continues the run; ``until`` stops it at a step."""
    site = site_of(request)
    path = site.index.path(request.path_params["id"])
    argv = [*ERNIE, *_resume_command(site, path)[1:], *request.state.more]
    summary = site.index.summary(path)
    site.tasks.add(argv, f"resume {summary.run}", device=summary.device or "cpu", run=summary.run)
    return RedirectResponse(f"/run/{summary.id}", 303)


async def act(request: Request) -> Response:
    """Stop, resume, write the report, or check and export a checkpoint."""
    from starlette.concurrency import run_in_threadpool

    given = await form(request)
    request.state.more = ()
    action = request.path_params["action"]
    checkpoint = await field(request, "checkpoint")
    if action == "resume":
        if "from" in given:
            path = site_of(request).index.path(request.path_params["id"])
            request.state.more = (f"run.resume={_checkpoint(path, given['from'][0])}",)
        return await run_in_threadpool(resume, request)
    handler = {"stop": _stop, "kill": _stop, "verify": _verify, "export": _export, "chat": _chat,
               "report": _report}.get(action)  # fmt: skip
    if handler is None:
        raise HTTPException(404)
    return await run_in_threadpool(handler, request, action, checkpoint)


def _stop(request: Request, action: str, checkpoint: str) -> Response:
    site = site_of(request)
    path = site.index.path(request.path_params["id"])
    arguments = ["runs", "stop", _place(site, path), *(["--now"] if action == "kill" else [])]
    return _told(request, arguments, site.actions.ernie(*arguments))


def _verify(request: Request, action: str, checkpoint: str) -> Response:
    site = site_of(request)
    path = _checkpoint(site.index.path(request.path_params["id"]), checkpoint)
    arguments = ["ckpt", "verify", _place(site, path)]
    return _told(request, arguments, site.actions.ernie(*arguments))


def _export(request: Request, action: str, checkpoint: str) -> Response:
    task, _ = _start_export(request, checkpoint)
    return RedirectResponse(f"/queue?task={task.name}", 303)


def _start_export(request: Request, checkpoint: str) -> tuple[Task, Path]:
    site = site_of(request)
    path = site.index.path(request.path_params["id"])
    found = _checkpoint(path, checkpoint)
    out = path / "exported" / found.name
    run = site.index.name_of(path)
    argv = [*ERNIE, "export", _place(site, found), "--out", _place(site, out)]
    return site.tasks.add(argv, f"export {run} {found.name}", run=run), out


def _chat(request: Request, action: str, checkpoint: str) -> Response:
    """Start a server of the exported checkpoint, which is exported before where it is not."""
    site = site_of(request)
    path = site.index.path(request.path_params["id"])
    out = path / "exported" / _checkpoint(path, checkpoint).name
    after = [] if (out / "config.json").is_file() else [_start_export(request, checkpoint)[0].name]
    place = site.models.place(out)
    site.chats.start(place, after)
    return RedirectResponse("/chat?" + urlencode({"model": place}), 303)


def _checkpoint(run: Path, name: str) -> Path:
    """A checkpoint of the run by its name; 404 for another path."""
    if name not in {found["name"] for found in checkpoints(run)}:
        raise HTTPException(404)
    return run / "ckpt" / name


def _told(request: Request, arguments: list[str], result: Result) -> Response:
    """What the command said, where htmx asked; else the page again."""
    return page(request, "told.html" if "hx-request" in request.headers else "told_page.html", current="runs",
                command=shown([*ERNIE, *arguments]), result=result, back=f"/run/{request.path_params['id']}")  # fmt: skip


def resolved(request: Request) -> Response:
    """The settings as a file that ``ernie run`` takes."""
    path = site_of(request).index.path(request.path_params["id"])
    if not (path / "resolved.yaml").is_file():
        raise HTTPException(404)
    return FileResponse(path / "resolved.yaml", filename=f"{path.name}.yaml", media_type="text/plain; charset=utf-8")


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [
        Route("/run/{id}", show),
        Route("/run/{id}/curves", curves),
        Route("/run/{id}/stream", stream),
        Route("/run/{id}/resolved.yaml", resolved),
        Route(f"/run/{{id}}/{REPORT}", report),
        Route("/run/{id}/logs/{name}", log_file),
        Route("/run/{id}/do/{action}", act, methods=["POST"]),
        Route("/run/{id}/{part}", show),
    ]
