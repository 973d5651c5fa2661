"""The list of runs: state, progress, live numbers, search, tags, the trash."""

from __future__ import annotations

from urllib.parse import urlencode

from erniecore_runs.latest import STATES
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError
from erniecore_webui.rendering import field, form, page, site_of

#: runs on one page
ROWS = 50


def listing(request: Request) -> Response:
    """The list, or only its rows where htmx asks."""
    site, query = site_of(request), request.query_params
    text, state, tag = query.get("q", "").strip(), query.get("state", ""), query.get("tag", "")
    found, unread = site.index.select(text, state if state in STATES else "", tag)
    number = query.get("page", "1")
    last = max(1, -(-len(found) // ROWS))
    current = min(max(int(number) if number.isdecimal() and len(number) < 7 else 1, 1), last)
    rows = site.index.summaries(found[(current - 1) * ROWS : current * ROWS])
    filters = {key: value for key, value in (("q", text), ("state", state), ("tag", tag)) if value}
    return page(
        request, "runs_rows.html" if "hx-request" in request.headers else "runs.html", current="runs", rows=rows,
        total=len(found), unread=unread, number=current, last=last, text=text, state=state, tag=tag, states=STATES,
        query=lambda **more: "?" + urlencode({**filters, **more}), root=site.root,
        tags=sorted({tag for tags in site.index.tags().values() for tag in tags}),
        undo=query.get("undo", ""), undone=query.get("undone", ""), trash=len(site.trash.all()),
    )  # fmt: skip


async def delete(request: Request) -> Response:
    """Move runs into the trash; the page then offers to undo it."""
    site = site_of(request)
    names = []
    for id_ in (await form(request)).get("run", []):
        path = site.index.path(id_)
        if site.index.summary(path).state == "running":
            raise UsageError("this run is going on", where=site.index.name_of(path), fix="stop it first")
        names.append((await run_in_threadpool(site.trash.put, path)).name)
    site.index.forget()
    return RedirectResponse("/runs?" + urlencode([("undo", ",".join(names))] if names else []), 303)


async def restore(request: Request) -> Response:
    """Bring runs back from the trash."""
    site = site_of(request)
    names = [site.trash.restore(name) for part in (await form(request)).get("name", []) for name in part.split(",")]
    site.index.forget()
    return RedirectResponse("/runs?" + urlencode({"undone": ", ".join(names)}), 303)


def trash(request: Request) -> Response:
    """The runs in the trash, each with a button that brings it back."""
    return page(request, "trash.html", current="runs", rows=site_of(request).trash.all())


async def tag(request: Request) -> Response:
    """Give a run tags."""
    site = site_of(request)
    path = site.index.path(request.path_params["id"])
    site.index.set_tags(site.index.name_of(path), (await field(request, "tags")).split(","))
    return RedirectResponse(f"/run/{request.path_params['id']}", 303)


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [
        Route("/runs", listing),
        Route("/runs/trash", trash),
        Route("/runs/delete", delete, methods=["POST"]),
        Route("/runs/restore", restore, methods=["POST"]),
        Route("/run/{id}/tags", tag, methods=["POST"]),
    ]
