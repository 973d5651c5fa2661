"""The queue: commands that wait for a place or for each other, those that go on, and how the others ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError
from erniecore_webui.index import run_id
from erniecore_webui.rendering import field, page, site_of
from erniecore_webui.tasks import Task, Tasks

_ROWS = 100
_USING = ("running", "starting")


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a task does not begin.

    Attributes:
        reason: ``after`` (another task has not ended), ``never`` (one did not end well, or is gone) or ``place`` (of its device).
        name, title: of the other task; empty for one that is gone, and for a place.
        ahead: for a place, how many wait before it.
    """

    reason: str
    name: str = ""
    title: str = ""
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a device: how many there are, how many are used, and how many tasks wait for one."""

    device: str
    total: int
    used: int
    waiting: int


def waits(tasks: Sequence[Task], queue: Tasks) -> dict[str, list[Wait]]:
    """Name -> why it does not begin, for tasks in the order of the queue."""
    by_name = {task.name: task for task in tasks}
    found: dict[str, list[Wait]] = {}
    ahead: dict[str, int] = {}
    for task in (task for task in tasks if task.state == "waiting"):
        reasons = [_of_other(name, by_name.get(name)) for name in task.after if _not_done(by_name.get(name))]
        if task.device and not task.at_once:
            used = sum(t.state in _USING and t.device == task.device for t in tasks)
            if not reasons and used + ahead.get(task.device, 0) >= queue.places_of(task.device):
                reasons.append(Wait("place", ahead=ahead.get(task.device, 0)))
            # one that waits for another task keeps nobody from a place
            ahead[task.device] = ahead.get(task.device, 0) + (not reasons or reasons[0].reason == "place")
        found[task.name] = reasons
    return found


def _not_done(task: Task | None) -> bool:
    return task is None or task.state != "done"


def _of_other(name: str, task: Task | None) -> Wait:
    if task is None:
        return Wait("never", title=name)
    return Wait("after" if task.state in ("waiting", *_USING) else "never", task.name, task.title)


def places(tasks: Sequence[Task], queue: Tasks) -> Iterator[Places]:
    """The places of each device that a task uses or waits for, and of those that were named."""
    ahead = [task for task in tasks if task.device and task.state in ("waiting", *_USING)]
    for device in sorted({*queue.of_device, *(task.device for task in ahead)}):
        of = [task.state for task in ahead if task.device == device]
        yield Places(device, queue.places_of(device), sum(state in _USING for state in of), of.count("waiting"))


def listing(request: Request) -> Response:
    """The tasks, and what the chosen one printed."""
    site = site_of(request)
    tasks = site.tasks.all()
    chosen = request.query_params.get("task", "")
    waiting = [task.name for task in tasks if task.state == "waiting"]
    return page(
        request, "queue_rows.html" if "hx-request" in request.headers else "queue.html", current="queue", tasks=tasks[:_ROWS],
        chosen=site.tasks.get(chosen) if chosen else None, default=site.tasks.places, places=list(places(tasks, site.tasks)),
        waits=waits(tasks, site.tasks), order={name: number for number, name in enumerate(waiting, 1)}, run_id=run_id,
    )  # fmt: skip


async def change(request: Request) -> Response:
    """Move a task in the queue, end it, take it out or put it back, or let it wait for no other one."""
    site, name = site_of(request), request.path_params["name"]
    site.tasks.get(name)
    action = await field(request, "action")
    if action in ("up", "down", "first"):
        site.tasks.move(name, {"up": -1, "down": 1, "first": -1_000_000}[action])
    elif action in ("cancel", "release", "restore"):
        {"cancel": site.tasks.cancel, "release": site.tasks.release, "restore": site.tasks.restore}[action](name)
    else:
        raise UsageError("no such action", found=action)
    return RedirectResponse("/queue", 303)


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [Route("/queue", listing), Route("/queue/{name}", change, methods=["POST"])]
