"""The machine as ``ernie doctor`` sees it, which takes seconds and so comes later, and what ``ernie bench`` measured on it."""

from __future__ import annotations

import os
import shutil

from erniecore_planner.rates import rates_file
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from erniecore.api.files import read_json
from erniecore_webui.actions import ERNIE
from erniecore_webui.choices import plugin_name, plugin_names
from erniecore_webui.index import run_id
from erniecore_webui.rendering import form, page, site_of

#: files of measurements, beside the one of rates, by the command that writes them
MEASURED = {
    "matmul": "rates",
    "comm": "links",
    "operators": "operators",
    "train": "steps",
    "loader": "loader",
    "serve": "serve",
}
#: those that need no run and no model, one that needs a model, and those that need the settings of a run
_BY_ITSELF, _OF_MODEL, _OF_RUN = ("matmul", "operators", "comm"), "serve", ("train", "loader")
_OFFERED, _RUNS, _TASKS = 300, 20, 5
_MOST = 1 << 24


def show(request: Request) -> Response:
    """Memory and disk at once, the measurements; the doctor's findings are asked for by the page."""
    from erniecore.api.installation import host_memory

    site = site_of(request)
    memory, disk = host_memory(), shutil.disk_usage(site.root)
    tasks = [task for task in site.tasks.all() if task.argv[len(ERNIE) : len(ERNIE) + 1] in (("bench",), ("doctor",))]
    runs = [found.run for found in site.index.found()[:_RUNS] if (site.root / found.run / "resolved.yaml").is_file()]
    return page(
        request, "machine.html", current="machine", memory=memory, disk=disk, benchmarks=_BY_ITSELF, of_run=_OF_RUN,
        measured=[row for command in MEASURED for row in measurements(command)], tasks=tasks[:_TASKS],
        devices=plugin_names("device"), runs=runs,
        models=[found.place for found in site.models.found().values() if not found.is_adapter][:_OFFERED],
    )  # fmt: skip


def measurements(command: str) -> list[dict[str, str]]:
    """What a benchmark kept of this user: what, device, dtype, day, and its numbers as text."""
    path = rates_file(os.environ).with_name(f"{MEASURED[command]}.json")
    try:
        rows = read_json(path, _MOST)
    except (OSError, ValueError):
        return []
    found = []
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            numbers = [f"{key} {value:.4g}" for key, value in row.items() if type(value) in (int, float)]
            found.append({"command": command, "numbers": ", ".join(numbers),
                          **{key: str(row.get(key, "")) for key in ("device", "machine", "dtype", "day")}})  # fmt: skip
    return found


def doctor(request: Request) -> Response:
    """What ``ernie doctor`` found."""
    site = site_of(request)
    result = site.actions.ernie("doctor", "--json", "--out", site.models.place(site.root))
    found = result.json()
    findings = found.get("findings", []) if isinstance(found, dict) else []
    return page(request, "machine_doctor.html", findings=findings, output=result.output)


async def bench(request: Request) -> Response:
    """Queue a benchmark, of a device, a model or the settings of a run, or open a device; on to its output."""
    site, name = site_of(request), request.path_params["name"]
    given = {key: values[0] for key, values in (await form(request)).items()}
    device = plugin_name("device", given.get("device") or "cpu")
    if name == "open":
        command = ["doctor", "--open", "--out", site.models.place(site.root)]
    elif name in _BY_ITSELF:
        command = ["bench", name]
    elif name == _OF_MODEL:
        site.models.path(given.get("model", ""))
        command = ["bench", name, "--model", given["model"]]
    elif name in _OF_RUN:
        path = site.index.path(run_id(given.get("run", "")))
        command = ["bench", name, site.models.place(path / "resolved.yaml")]
    else:
        raise HTTPException(404)
    task = site.tasks.add([*ERNIE, *command, "--device", device], " ".join(command[:2]), device=device)
    return RedirectResponse(f"/queue?task={task.name}", 303)


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [
        Route("/machine", show),
        Route("/machine/doctor", doctor),
        Route("/machine/bench/{name}", bench, methods=["POST"]),
    ]
