"""Plugins: what is installed, what cannot be used and why, how to install the known ones that are missing, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError, install_command
from erniecore.api.files import parse_json
from erniecore_webui.actions import ERNIE
from erniecore_webui.rendering import field, page, site_of

if TYPE_CHECKING:
    from erniecore.api.installation import Entry


@dataclass(frozen=True, slots=True)
class Missing:
    """A distribution that is not installed: its plugins, and the command that installs it."""

    distribution: str
    plugins: str
    command: str


def show(request: Request) -> Response:
    """The plugins by kind; those that nothing may use first."""
    from erniecore.api.installation import all_entries

    site = site_of(request)
    checks = {
        task.argv[len(ERNIE) + 1 :]: task
        for task in reversed(site.tasks.all())
        if task.argv[len(ERNIE) : len(ERNIE) + 1] == ("conform",)
    }
    entries = sorted(all_entries(), key=lambda entry: (entry.status == "ok", entry.kind, entry.name))
    tasks = [
        task for task in site.tasks.all() if task.argv[len(ERNIE) : len(ERNIE) + 1] in (("conform",), ("plugins",))
    ]
    return page(
        request, "plugins.html", current="plugins", entries=entries, tasks=tasks[:5], checks=checks,
        origins={entry.distribution: origin(entry) for entry in entries},
        kinds=list(dict.fromkeys(sorted(entry.kind for entry in entries))), missing=missing(),
    )  # fmt: skip


class Origin(NamedTuple):
    """Where a distribution came from: ``how`` is ``file`` (of a plugin in a file), ``editable``, ``local`` or ``index``."""

    how: str
    place: str


def origin(entry: Entry) -> Origin:
    """What the installer wrote beside the metadata (PEP 610)."""
    if entry.is_file:
        return Origin("file", entry.target)
    try:
        told = parse_json((distribution(entry.distribution).read_text("direct_url.json") or "{}").encode())
    except (PackageNotFoundError, ValueError):
        return Origin("index", "")
    url = str(told.get("url", "")) if isinstance(told, dict) else ""
    facts = told.get("dir_info") if isinstance(told, dict) else None
    editable = isinstance(facts, dict) and bool(facts.get("editable"))
    return Origin("editable" if editable else "local" if url else "index", unquote(url.removeprefix("file://")))


def missing() -> list[Missing]:
    """The distributions of this project that are not installed."""
    from erniecore.api.installation import all_entries, installed, known

    here = {(entry.kind, entry.name) for entry in all_entries()}
    absent: dict[str, list[str]] = {}
    for (kind, name), home in known().items():
        if (kind, name) not in here and not installed((home,)):
            absent.setdefault(home, []).append(f"{kind} {name}")
    return [Missing(name, ", ".join(plugins), install_command(name)) for name, plugins in sorted(absent.items())]


async def conform(request: Request) -> Response:
    """Queue the conformance checks of one plugin."""
    from erniecore.api.installation import all_entries

    site, kind, name = site_of(request), await field(request, "kind"), await field(request, "name")
    if (kind, name) not in {(entry.kind, entry.name) for entry in all_entries()}:
        raise UsageError("there is no such plugin", found=f"{kind} {name}", next="ernie plugins")
    site.tasks.add([*ERNIE, "conform", kind, name], f"conform {kind} {name}")
    return RedirectResponse(f"/plugins#{kind}-{name}", 303)


def check(request: Request) -> Response:
    """Queue the check that imports each plugin in a process of its own."""
    task = site_of(request).tasks.add([*ERNIE, "plugins", "check"], "plugins check")
    return RedirectResponse(f"/queue?task={task.name}", 303)


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [
        Route("/plugins", show),
        Route("/plugins/conform", conform, methods=["POST"]),
        Route("/plugins/check", check, methods=["POST"]),
    ]
