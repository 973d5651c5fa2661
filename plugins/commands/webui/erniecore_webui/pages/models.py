"""Models: the directories below the roots, what they are, and commands on them: quantize, merge, export, check, download."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError
from erniecore.api.installation import installed
from erniecore_webui.actions import ERNIE
from erniecore_webui.choices import part_of, plugin_name, plugins
from erniecore_webui.model_dirs import describe, sizes
from erniecore_webui.rendering import form, page, site_of
from erniecore_webui.site import Site
from erniecore_webui.tasks import Task

_ROWS, _OFFERED, _WORKS = 50, 300, 10
#: directory below the root for what the commands write
_OUT = "models"
#: what `ernie model pull` takes, but for other hosts
_ON_HUB = re.compile(r"[a-z][a-z0-9-]*:[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?", re.ASCII)
_PULL = ("model", "pull")
DTYPES = ("", "float32", "bfloat16", "float16")


def listing(request: Request) -> Response:
    """The list, or only its rows where htmx asks."""
    site, text = site_of(request), request.query_params.get("q", "").strip()
    if "hx-request" not in request.headers:  # whoever opens the page may have just made one
        site.models.forget()
    adapters = request.query_params.get("kind", "") == "adapter"
    found = [item for item in site.models.select(text) if item.is_adapter or not adapters]
    part = part_of(request, found, _ROWS)
    rows = [describe(item.path, item.place) for item in part.rows]
    filters = {key: value for key, value in (("q", text), ("kind", "adapter" if adapters else "")) if value}
    return page(
        request, "models_rows.html" if "hx-request" in request.headers else "models.html", current="models", rows=rows,
        text=text, total=len(found), number=part.number, last=part.last, roots=site.models.roots,
        adapters=adapters, pulls=installed(("erniecore-hubs",)), place="", works=works(site, ""),
        query=lambda **more: "?" + urlencode({**filters, **more}),
    )  # fmt: skip


def show(request: Request) -> Response:
    """One model: its facts, the commands, and what was started on it."""
    from erniecore.api.export import ExporterCapability
    from erniecore.api.quantizer import QuantizerCapability

    site, place = site_of(request), request.query_params.get("path", "")
    model = site.models.describe(place)
    stem = Path(place).parent.name if Path(place).name in ("model", "adapter") else Path(place).name
    quantizers = [plugin for plugin in plugins("quantizer") if QuantizerCapability.EXPORT in plugin.capabilities]
    exporters = [
        p for p in plugins("exporter") if model.kind != "packed" or ExporterCapability.PACKED in p.capabilities
    ]
    return page(
        request, "model.html", current="models", model=model, stem=stem or "model", dtypes=DTYPES, exporters=exporters,
        quantizers={needs: [p for p in quantizers if (QuantizerCapability.CALIBRATE in p.capabilities) == needs]
                    for needs in (False, True)},
        contracts=contracts(), works=works(site, place), data=list(site.data.found())[:_OFFERED],
        models=[found.place for found in site.models.found().values() if not found.is_adapter][:_OFFERED],
    )  # fmt: skip


def contracts() -> list[str]:
    """Exporters that have rules for directories."""
    from erniecore.api.installation import assemble

    ruled = (p for p in plugins("exporter") if assemble({"exporter": p}).hook.ernie_contract_rules.get_hookimpls())
    return sorted({"hf", *(plugin.name for plugin in ruled)})


def progress(request: Request) -> Response:
    """What was started on a model, or (without one) what is downloaded, as far as it is."""
    site, place = site_of(request), request.query_params.get("path", "")
    if place:
        site.models.path(place)
    return page(request, "model_works.html", works=works(site, place), place=place)


@dataclass(frozen=True, slots=True)
class Work:
    """A command on a model.

    Attributes:
        out: place of what it writes; ``""``: nothing. there: whether the list of models has it.
        written: bytes so far. seconds: since it was started, until its end. said: the last line that it printed.
    """

    task: Task
    out: str
    there: bool
    written: int
    seconds: float | None
    said: str


def works(site: Site, place: str) -> list[Work]:
    """The commands that were started on a model, or (``""``) that download one, the newest first."""
    tasks = [(task, task.argv[len(ERNIE) :]) for task in site.tasks.all()]
    if not place:
        return _worked(site, (task for task, command in tasks if command[:2] == _PULL))
    return _worked(site, (task for task, command in tasks if place in command and command[0] != "serve"))


def _worked(site: Site, tasks: Iterable[Task]) -> list[Work]:
    found = []
    for task in islice(tasks, _WORKS):
        out = next((value for option, value in pairwise(task.argv) if option == "--out"), "")
        lines = task.output(4 << 10).strip().splitlines()
        end = task.ended or time.time()
        there = task.state == "done" and bool(out) and site.models.at(out) is not None
        found.append(Work(task, out, there, _written(site.home / out) if out else 0,
                          None if task.started is None else end - task.started, lines[-1] if lines else ""))  # fmt: skip
    return found


def _written(out: Path) -> int:
    """Bytes of the files in a directory, and in those beside it that become it at the end."""
    places = [out, *(path for path in out.parent.glob(f".{out.name}*") if path.is_dir())]
    return sum(size for path in places for size in sizes(path).values())


async def pull(request: Request) -> Response:
    """Queue the download of a model of a hub."""
    site, given = site_of(request), {key: values[0] for key, values in (await form(request)).items()}
    name = given.get("model", "").strip()
    if not _ON_HUB.fullmatch(name) or ".." in name:
        raise UsageError(
            "this is no name on a hub", found=name, expected="hf:owner/name or ms:owner/name, also with @revision"
        )
    directory = given.get("name", "").strip() or name.partition("@")[0].rpartition("/")[2]
    with site.naming():
        task = site.tasks.add([*ERNIE, *_PULL, name, *_out(site, {"name": directory})], f"pull {name}", at_once=True)
    site.models.forget()
    return RedirectResponse(f"/models#{task.name}", 303)


async def act(request: Request) -> Response:
    """Queue a command on a model, whose page shows how far it is."""
    site, given = site_of(request), {key: values[0] for key, values in (await form(request)).items()}
    place, action = given.get("path", ""), request.path_params["action"]
    site.models.path(place)
    make = {"quantize": _quantize, "merge": _merge, "export": _export, "check": _check}.get(action)
    if make is None:
        raise HTTPException(404)
    with site.naming():
        task = site.tasks.add([*ERNIE, *make(site, place, given)], f"{action} {place}")
    site.models.forget()
    return RedirectResponse("/models/show?" + urlencode({"path": place}) + f"#{task.name}", 303)


def _out(site: Site, given: dict[str, str]) -> list[str]:
    path = site.new_directory(_OUT, given.get("name", "").strip())
    path.parent.mkdir(exist_ok=True)
    return ["--out", site.models.place(path)]


def _quantize(site: Site, place: str, given: dict[str, str]) -> list[str]:
    calibration = given.get("calib", "").strip()
    more = ["--calib", site.models.place(site.data_file(calibration))] if calibration else []
    return ["quantize", place, "--to", plugin_name("quantizer", given.get("to", "")), *more, *_out(site, given)]


def _merge(site: Site, place: str, given: dict[str, str]) -> list[str]:
    base = given.get("base", "")
    if base:
        site.models.path(base)
    return ["merge", place, *(["--base", base] if base else []), *_out(site, given)]


def _export(site: Site, place: str, given: dict[str, str]) -> list[str]:
    dtype = given.get("dtype", "")
    if dtype not in DTYPES:
        raise UsageError("no such dtype", found=dtype, expected="one of " + ", ".join(DTYPES[1:]))
    to = plugin_name("exporter", given.get("to", ""))
    return ["export", place, "--to", to, *(["--dtype", dtype] if dtype else []), *_out(site, given)]


def _check(site: Site, place: str, given: dict[str, str]) -> list[str]:
    return ["model", "check", place, "--contract", plugin_name("exporter", given.get("to", ""))]


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [
        Route("/models", listing),
        Route("/models/show", show),
        Route("/models/works", progress),
        Route("/models/pull", pull, methods=["POST"]),
        Route("/models/do/{action}", act, methods=["POST"]),
    ]
