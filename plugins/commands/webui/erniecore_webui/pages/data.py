"""Data: the files of rows, what ``ernie data check`` says of each row, statistics, and samples as the model sees them, with the
tokens that are learned. Everything that is said of rows is what the commands say."""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path
from urllib.parse import unquote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import UsageError
from erniecore_webui.actions import ERNIE
from erniecore_webui.choices import part_of, plugin_name, plugin_names
from erniecore_webui.data_files import has_lines, is_data, lines, receive
from erniecore_webui.rendering import form, page, site_of
from erniecore_webui.site import NAME, Site

_ROWS, _OFFERED, _RAW = 50, 300, 10
#: bytes of a file that is checked while somebody waits; a larger one is checked in the queue
AT_ONCE = 32 << 20
#: directory below the root for uploads, and below ``.web`` for images that samples have
_UPLOADS, _SEEN = "data", "seen"
_SHOWN_SAMPLES, _ERRORS, _KEPT_IMAGES = 5, 50, 20


def listing(request: Request) -> Response:
    """The list, or only its rows where htmx asks."""
    site, text = site_of(request), request.query_params.get("q", "").strip()
    found = site.data.select(text)
    part = part_of(request, found, _ROWS)
    return page(
        request, "data_rows.html" if "hx-request" in request.headers else "data.html", current="data",
        rows=part.rows, text=text, total=len(found), number=part.number, last=part.last,
        roots=[site.models.place(site.root), site.models.place(site.home)], uploads=site.models.place(site.root / _UPLOADS),
        query=lambda **more: "?" + urlencode({**({"q": text} if text else {}), **more}),
    )  # fmt: skip


def show(request: Request) -> Response:
    """One file; check, statistics and samples are asked for by the page."""
    site, query = site_of(request), request.query_params
    path = site.data_file(query.get("path", ""))
    models = [place for place, found in site.models.found().items() if not found.is_adapter][:_OFFERED]
    line = _whole(query.get("line", ""))
    return page(
        request, "data_file.html", current="data", file=site.data.describe(path), models=models,
        model=query.get("model", next(iter(models), "")), methods=plugin_names("method"), method=query.get("method", "sft"),
        line=line, raw=lines(path, max(line, 1), _RAW) if has_lines(path) else [], plain=has_lines(path),
        at_once=path.stat().st_size <= AT_ONCE,
        tasks=[task for task in site.tasks.all() if task.argv[len(ERNIE) :][:2] == ("data", "check")
               and site.models.place(path) in task.argv][:5],
    )  # fmt: skip


def check(request: Request) -> Response:
    """What becomes of every row."""
    site, query = site_of(request), request.query_params
    path = site.data_file(query.get("path", ""))
    if path.stat().st_size > AT_ONCE:
        raise UsageError("this file is checked in the queue", where=site.models.place(path), found="its size")
    result = site.actions.asked(*_check(site, path, query.get("model", ""), query.get("method", "")))
    report = result.json()
    return page(request, "data_check.html", report=report if isinstance(report, dict) else {}, output=result.output,
                file=site.models.place(path))  # fmt: skip


async def queue_check(request: Request) -> Response:
    """Check a large file in the queue; on to its output."""
    site, given = site_of(request), {key: values[0] for key, values in (await form(request)).items()}
    path = site.data_file(given.get("path", ""))
    argv = [*ERNIE, *_check(site, path, given.get("model", ""), given.get("method", ""), "--workers", "1")]
    task = site.tasks.add(argv, f"data check {site.models.place(path)}")
    return RedirectResponse(f"/queue?task={task.name}", 303)


def statistics(request: Request) -> Response:
    """Turns, roles and lengths; tokens where a model is chosen."""
    site, query = site_of(request), request.query_params
    path = site.data_file(query.get("path", ""))
    if path.stat().st_size > AT_ONCE:
        raise UsageError("this file is too large to be counted while somebody waits", where=site.models.place(path),
                         fix=f"ernie data stats {site.models.place(path)}")  # fmt: skip
    result = site.actions.asked("data", "stats", site.models.place(path), *_model(site, query.get("model", "")),
                                *_method(query.get("method", "")), "--json")  # fmt: skip
    found = result.json()
    return page(request, "data_statistics.html", found=found if isinstance(found, dict) else {}, output=result.output)


def samples(request: Request) -> Response:
    """Samples as the model sees them; images and frames are written below ``.web/seen``."""
    site, query = site_of(request), request.query_params
    path = site.data_file(query.get("path", ""))
    name = secrets.token_hex(8)
    folder = site.state / _SEEN / name
    line = _whole(query.get("line", ""))
    model = _model(site, query.get("model", ""))
    if not model:
        raise UsageError("samples need the tokenizer of a model", where="model", fix="choose a model")
    result = site.actions.asked(
        "data", "show", site.models.place(path), *model, *_method(query.get("method", "")),
        *(["--line", str(line)] if line else []), "--limit", str(_SHOWN_SAMPLES), "--images", site.models.place(folder), "--json",
    )  # fmt: skip
    found = result.json()
    _forget(site.state / _SEEN)
    return page(
        request, "data_samples.html", samples=found if isinstance(found, list) else [], output=result.output,
        folder=name, file_name=lambda path: Path(path).name,
    )  # fmt: skip


def image(request: Request) -> Response:
    """An image that a sample has, as the model sees it."""
    folder, name = request.path_params["folder"], request.path_params["name"]
    path = site_of(request).state / _SEEN / folder / name
    if not re.fullmatch(r"[0-9a-f]{16}", folder) or not name.endswith(".png") or "/" in name or not path.is_file():
        raise HTTPException(404)
    return FileResponse(path, media_type="image/png")


async def upload(request: Request) -> Response:
    """The body is the file, its name a header; the shield has seen the secret and does not hold the body."""
    site, name = site_of(request), unquote(request.headers.get("x-file-name", ""))
    if not NAME.fullmatch(name) or not is_data(name):
        raise UsageError("this is no name for a file of rows", where=name or "x-file-name",
                         expected="letters, digits, dots, hyphens and underscores, and an ending such as .jsonl")  # fmt: skip
    target = site.root / _UPLOADS / name
    if target.exists():
        raise UsageError("this name is taken", where=site.models.place(target), fix="rename the file")
    size = int(request.headers["content-length"])
    try:
        await receive(target, request.stream(), size)
    except ClientDisconnect:
        return Response(status_code=400)
    place = site.models.place(target)
    await run_in_threadpool(site.actions.audit, ["upload", place], bytes=size)
    site.data.forget()
    return JSONResponse({"to": "/data/lines?" + urlencode({"path": place})})


def _whole(text: str) -> int:
    """0 for none. Raises ``UsageError`` for what is no whole number."""
    if text and not (text.isascii() and text.isdecimal() and len(text) < 13):
        raise UsageError("this is no whole number", found=text[:80])
    return int(text or 0)


def _model(site: Site, place: str) -> list[str]:
    if not place:
        return []
    site.models.path(place)
    return ["--model", place]


def _method(name: str) -> list[str]:
    return ["--method", plugin_name("method", name)] if name else []


def _check(site: Site, path: Path, model: str, method: str, *more: str) -> list[str]:
    found = [*_model(site, model), *_method(method)]
    return ["data", "check", site.models.place(path), *found, "--max-errors", str(_ERRORS), *more, "--json"]


def _forget(folder: Path) -> None:
    """Images of all but the last looks."""
    if folder.is_dir():
        for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT_IMAGES]:
            shutil.rmtree(old, ignore_errors=True)


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [
        Route("/data", listing),
        Route("/data/lines", show),
        Route("/data/check", check),
        Route("/data/check", queue_check, methods=["POST"]),
        Route("/data/statistics", statistics),
        Route("/data/samples", samples),
        Route("/data/seen/{folder}/{name}", image),
        Route("/data/upload", upload, methods=["POST"]),
    ]
