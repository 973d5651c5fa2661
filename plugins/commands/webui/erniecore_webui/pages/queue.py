"""The queue: commands that wait for a place, that go on, and how the others ended."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore_webui.rendering import field, page, site_of

_ROWS = 100


def listing(request: Request) -> Response:
    """The tasks, and what the chosen one printed."""
    site = site_of(request)
    tasks = site.tasks.all()[:_ROWS]
    chosen = request.query_params.get("task", "")
    return page(
        request, "queue_rows.html" if "hx-request" in request.headers else "queue.html", current="queue", tasks=tasks,
        chosen=site.tasks.get(chosen) if chosen else None, places=site.tasks.places,
        titles={task.name: task.title for task in tasks}, run_id=_run_id,
    )  # fmt: skip


def _run_id(run: str) -> str:
    from erniecore_webui.index import run_id

    return run_id(run)


async def change(request: Request) -> Response:
    """Move a task in the queue, or end it."""
    site, name = site_of(request), request.path_params["name"]
    site.tasks.get(name)
    action = await field(request, "action")
    if action == "cancel":
        site.tasks.cancel(name)
    elif action in ("up", "down"):
        site.tasks.move(name, -1 if action == "up" else 1)
    return RedirectResponse("/queue", 303)


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [Route("/queue", listing), Route("/queue/{name}", change, methods=["POST"])]
