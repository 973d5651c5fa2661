"""Writing the report files of a run; each appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from erniecore_runs.record import DATA_REPORT_NAME, RunRecord, number, read_run, row_statistics
from erniecore_runs.settings import RESOLVED_NAME, hyperparameters

import erniecore
from erniecore.api import UsageError, counted
from erniecore.api.runs import EVENTS_NAME, size_text, warning_text
from erniecore_report.chart import BOTTOM, FULL, LEFT, PHONE, RIGHT, TOP, Chart, make_chart
from erniecore_report.image import PLOT_NAME, draw_loss
from erniecore_report.panels import ON_PAGE, panels
from erniecore_report.samples import kept_samples
from erniecore_report.summary import eval_table, figures, memory_series

REPORT_NAME = "report.html"
_STATUS_CLASS = {"ok": "good", "finished": "good", "unfinished": "unsure", "preempted": "unsure"}


class Written(NamedTuple):
    """What a report consists of, and what is missing from it."""

    paths: list[Path]
    notes: list[str]


def write_report(run_dir: Path) -> Written:
    """Write ``report.html`` and ``loss.png`` into ``run_dir``.

    Works on a finished, running or crashed run.

    Raises:
        UsageError: there is no events.jsonl in ``run_dir``.
    """
    run_dir = Path(run_dir)
    try:
        record = read_run(run_dir)
    except FileNotFoundError as error:
        raise UsageError(
            "this is not a run directory", where=str(run_dir), expected=f"a directory with {EVENTS_NAME}"
        ) from error
    notes = list(record.notes)
    paths = []
    plot_note = _replace(run_dir / PLOT_NAME, lambda path: draw_loss(record, path))
    if plot_note:
        notes.append(plot_note)
    else:
        paths.append(run_dir / PLOT_NAME)
    page = render(record)
    _replace(run_dir / REPORT_NAME, lambda path: _write_text(path, page))
    return Written([run_dir / REPORT_NAME, *paths], notes)


def _write_text(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return ""


def _replace(target: Path, write: Callable[[Path], str]) -> str:
    """Let ``write`` fill a temporary file and give it its name, unless it returns why there is nothing."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        note = write(temporary)
        if not note:
            os.replace(temporary, target)
        return note
    finally:
        temporary.unlink(missing_ok=True)


class Drawing(NamedTuple):
    """A chart; one across the page also as a phone shows it."""

    chart: Chart
    phone: Chart | None = None


def charts(record: RunRecord) -> list[Drawing]:
    """The charts of a run that have something to show: the loss, what matters to the method, then how it went."""
    made = [
        *(
            make_chart(name, record.series(name), other=record.eval_series(name), smooth=True)
            for name in panels(record)[:ON_PAGE]
        ),
        make_chart("gradient norm", record.series("grad_norm"), smooth=True, zero=True),
        make_chart("learning rate", record.series("lr"), zero=True),
        make_chart("tokens per second", record.series("tokens_per_s"), smooth=True, zero=True),
        make_chart("memory", memory_series(record), unit="MiB", zero=True),
    ]
    loss, phone = (
        make_chart("loss", record.series("loss"), other=record.eval_series("loss"), smooth=True, size=size)
        for size in (FULL, PHONE)
    )
    return [*([Drawing(loss, phone)] if loss else []), *(Drawing(chart) for chart in made if chart)]


def render(record: RunRecord) -> str:
    """The page as HTML: one file, no script, nothing from the network; every text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("erniecore_report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    columns, rows = eval_table(record)
    chosen, defaults = hyperparameters(record.directory)
    return environment.get_template("page.html.j2").render(
        record=record,
        status_class=_STATUS_CLASS.get(record.status, "bad"),
        figures=figures(record),
        charts=charts(record),
        margin={"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        eval_columns=columns,
        eval_rows=rows,
        samples=kept_samples(record),
        row_statistics=row_statistics(record.data),
        checkpoints=_checkpoints(record),
        hyperparameters=chosen,
        defaults=defaults,
        counted=counted,
        facts=_facts(record),
        artefacts=_artifacts(record.directory),
        warning_text=warning_text,
        version=erniecore.__version__,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


#: parts of ``run_start`` that the page shows elsewhere or not at all
_HIDDEN_FACTS = frozenset({"event", "notes", "step", "total_steps"})


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    """What the last ``run_start`` says of the run, as (name, text)."""
    start = record.starts[-1] if record.starts else {}
    facts: list[tuple[str, str]] = []
    for key, value in start.items():
        if key in _HIDDEN_FACTS or value in (None, "", [], {}):
            continue
        if key == "time":
            facts.insert(0, ("started", _when(value)))
        elif isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value):
            facts += [(str(name), str(text)) for name, text in value]
        else:
            facts.append((key.replace("_", " "), _text(value)))
    if len(record.starts) > 1:
        facts.insert(1, ("restarts", str(len(record.starts) - 1)))
    return facts


def _checkpoints(record: RunRecord) -> list[tuple[object, str]]:
    """(step, place in the run directory) of the checkpoints that are there; the others have made way for newer ones."""
    found: dict[str, object] = {}
    for event in record.checkpoints:
        name = Path(str(event.get("path", ""))).name
        if name and (record.directory / "ckpt" / name).is_dir():
            found[f"ckpt/{name}"] = event.get("step", "")
    return [(step, path) for path, step in found.items()]


def _text(value: object) -> str:
    if isinstance(value, dict):
        return " · ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return f"{value:,}" if type(value) is int and value > 9999 else str(value)


def _when(value: object) -> str:
    seconds = number(value)
    if seconds is None:
        return str(value)
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


_DESCRIPTIONS: dict[str, str] = {
    RESOLVED_NAME: "every setting with its source; runs this again",
    EVENTS_NAME: "one line per event",
    DATA_REPORT_NAME: "what became of every row",
    PLOT_NAME: "the loss curve",
    "model": "the model in the Hugging Face format",
    "ckpt": "checkpoints to resume from",
    "logs": "one file per rank",
}


def _artifacts(directory: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or path.name == REPORT_NAME:
            continue
        files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
        found.append(
            {
                "name": path.name + ("/" if path.is_dir() else ""),
                "size": size_text(sum(item.stat().st_size for item in files)),
                "about": _DESCRIPTIONS.get(path.name, ""),
            }
        )
    return found
