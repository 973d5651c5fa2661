"""Models: the directories below the roots, what they are, and commands on them: quantize, merge, export, check."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError
from erniecore_webui.actions import ERNIE
from erniecore_webui.choices import part_of, plugin_name, plugin_names
from erniecore_webui.model_dirs import describe
from erniecore_webui.rendering import form, page, site_of
from erniecore_webui.site import Site

_ROWS = 50
#: directory below the root for what the commands write
_OUT = "models"
DTYPES = ("", "float32", "bfloat16", "float16")


def listing(request: Request) -> Response:
    """The list, or only its rows where htmx asks."""
    site, text = site_of(request), request.query_params.get("q", "").strip()
    found = site.models.select(text)
    part = part_of(request, found, _ROWS)
    rows = [describe(item.path, item.place) for item in part.rows]
    return page(
        request, "models_rows.html" if "hx-request" in request.headers else "models.html", current="models", rows=rows,
        text=text, total=len(found), number=part.number, last=part.last, roots=site.models.roots,
        query=lambda **more: "?" + urlencode({**({"q": text} if text else {}), **more}),
    )  # fmt: skip


def show(request: Request) -> Response:
    """One model: its facts, the commands, and what was started on it."""
    site, place = site_of(request), request.query_params.get("path", "")
    model = site.models.describe(place)
    stem = Path(place).parent.name if Path(place).name in ("model", "adapter") else Path(place).name
    return page(
        request, "model.html", current="models", model=model, stem=stem or "model", dtypes=DTYPES,
        quantizers=plugin_names("quantizer"), exporters=plugin_names("exporter"),
        tasks=[task for task in site.tasks.all() if place in task.argv][:10],
    )  # fmt: skip


async def act(request: Request) -> Response:
    """Queue a command on a model; on to its output."""
    site, given = site_of(request), {key: values[0] for key, values in (await form(request)).items()}
    place, action = given.get("path", ""), request.path_params["action"]
    site.models.path(place)
    make = {"quantize": _quantize, "merge": _merge, "export": _export, "check": _check}.get(action)
    if make is None:
        raise HTTPException(404)
    with site.naming():
        task = site.tasks.add([*ERNIE, *make(site, place, given)], f"{action} {place}")
    site.models.forget()
    return RedirectResponse(f"/queue?task={task.name}", 303)


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
        Route("/models/do/{action}", act, methods=["POST"]),
    ]
