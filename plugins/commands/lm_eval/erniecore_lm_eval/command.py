"""``ernie lm-eval``: tasks of lm-evaluation-harness on a model. Nothing heavy is imported before the arguments make sense."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from erniecore_generation import options as generation_options
from erniecore_generation.options import Adapter, Device, Model, Thinking

from erniecore.api import EnvironmentFault, UsageError, install_command
from erniecore.api.command import JsonOption, note, opens_models, show, show_json, show_table, store_text

#: tokens of a prompt and what follows it, where the model has room for more
LENGTH = 8192

_Tasks = Annotated[
    list[str],
    typer.Option("--tasks", metavar="NAME[,NAME]", help="Tasks, groups, tags, or YAML files; may be repeated."),
]
_Include = Annotated[
    Path | None, typer.Option("--include-path", metavar="DIR", help="Directory with task files of yours.")
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the results; finished requests are kept in FILE.requests.jsonl."),
]
_Samples = Annotated[
    Path | None, typer.Option("--samples", metavar="FILE", help="Write what every row got, for `ernie eval --compare`.")
]
_Code = Annotated[
    bool, typer.Option("--allow-code", help="Task files may run Python (!function, scripts, free Jinja).")
]
_Kwargs = Annotated[
    str, typer.Option("--gen-kwargs", metavar="K=V,K=V", help="Generation settings over those of tasks.")
]
_Length = Annotated[
    int | None,
    typer.Option("--max-length", min=2, metavar="N", help=f"Context in tokens [the model's, at most {LENGTH}]."),
]


@opens_models
def lm_eval(
    model: Model,
    tasks: _Tasks,
    include_path: _Include = None,
    num_fewshot: Annotated[int | None, typer.Option("--num-fewshot", min=0, help="Examples per prompt.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="First N rows of each task; 0: all.")] = 0,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Completions decoded together.")] = 8,
    max_length: _Length = None,
    chat_template: Annotated[
        bool, typer.Option("--chat-template", help="Prompts go through the chat template.")
    ] = False,
    system: Annotated[
        str, typer.Option("--system", metavar="TEXT", help="System message, or text before a prompt.")
    ] = "",
    multiturn: Annotated[
        bool, typer.Option("--multiturn/--one-turn", help="Examples as messages of their own, or in one.")
    ] = True,
    thinking: Thinking = None,
    gen_kwargs: _Kwargs = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of examples and of sampling.")] = 0,
    out: _Out = None,
    samples: _Samples = None,
    allow_code: _Code = False,
    adapter: Adapter = None,
    device: Device = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Run tasks of lm-evaluation-harness on a model, in-process and offline.

    Scores do not depend on --batch-size. With --out, a run that was killed continues where it was.
    """
    names = tuple(name.strip() for part in tasks for name in part.split(",") if name.strip())
    harness = _harness()
    wanted = harness.Wanted(
        names, include_path, num_fewshot, limit, seed, chat_template, system, multiturn, _settings(gen_kwargs),
        allow_code=allow_code,
    )  # fmt: skip
    for path in (out, samples):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError("no such directory", where=str(path), found=str(path.absolute().parent))
    how = {"batch_size": batch_size, "max_length": max_length, "thinking": thinking}
    report = _evaluated(harness, wanted, model, adapter, device, out, how)
    _finish(report, out, samples, as_json=as_json)


def _evaluated(
    harness: Any, wanted: Any, model: Path, adapter: Path | None, device: str, out: Path | None, how: dict[str, Any]
) -> dict[str, Any]:
    """The report with its samples; the tasks are loaded before the model."""
    loaded = harness.load_tasks(wanted)
    bundle, _ = generation_options.open_model(model, device, adapter)
    room = int(bundle.architecture.get("max_position_embeddings") or LENGTH)
    length = min(room, how["max_length"] or LENGTH)
    from erniecore_generation.model_hash import model_hash

    from erniecore_lm_eval.kept import KeptResults
    from erniecore_lm_eval.model import HarnessModel

    facts: dict[str, Any] = {"model": str(model), "adapter": str(adapter or "")}
    facts |= {"model_sha256": model_hash(model, adapter), "versions": harness.versions(), "device": device}
    facts |= {"max_length": length, "seed": wanted.seed}
    depends = json.dumps({key: facts[key] for key in ("model_sha256", "versions", "device", "max_length")})
    kept = KeptResults(None if out is None else out.with_name(f"{out.name}.requests.jsonl"), depends)
    try:
        evaluated = HarnessModel(bundle, kept=kept, seed=wanted.seed, **{**how, "max_length": length})
        found = harness.evaluate_tasks(evaluated, loaded, wanted)
    finally:
        kept.close()
    asked = {name: value for name, value in asdict(wanted).items() if name not in ("tasks", "include_path", "seed")}
    return {**facts, **asked, "reused_requests": kept.reused, **found}


def _harness() -> Any:
    """The module that runs the harness. Raises ``EnvironmentFault`` where that is not installed."""
    try:
        import lm_eval  # noqa: F401
    except ModuleNotFoundError as error:
        message = "`ernie lm-eval` needs the package lm-eval"
        raise EnvironmentFault(message, next=install_command("lm-eval", of="erniecore-lm-eval")) from error
    from erniecore_lm_eval import harness

    return harness


def _settings(text: str) -> dict[str, Any]:
    """``K=V,K=V`` with JSON values, or text."""
    found: dict[str, Any] = {}
    for part in (p for p in text.split(",") if p.strip()):
        name, separator, value = part.partition("=")
        if not separator:
            raise UsageError(
                "not KEY=VALUE", where="--gen-kwargs", found=part.strip(), expected="max_gen_toks=64,temperature=0.7"
            )
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = {"True": True, "False": False}.get(value, value)
    return found


def _finish(report: dict[str, Any], out: Path | None, samples: Path | None, *, as_json: bool) -> None:
    """Write what was asked for, and show the scores."""
    rows = report.pop("samples")
    if samples is not None:
        lines = (sample_row(task, row) for task, found in rows.items() for row in found)
        store_text(
            samples,
            "".join(f"{json.dumps(line, ensure_ascii=False, default=str)}\n" for line in lines),
            "writing samples",
        )
    if out is not None:
        store_text(out, json.dumps(report, ensure_ascii=False, indent=2, default=str) + "\n", "writing the results")
    if as_json:
        show_json(json.loads(json.dumps(report, default=str)))
        return
    show_table(["task", "version", "rows", "metric", "score", "stderr"], table_of(report))
    for name, facts in report["tasks"].items():
        if facts.get("truncated"):
            note(
                f"note: {name}: {facts['truncated']} of {facts['requests']} prompts lost their beginning: "
                f"the longest has {facts['longest']} tokens, the context {report['max_length']}"
            )
        if report["chat_template"] and facts.get("chat_template", 0) < facts.get("requests", 0):
            note(
                f"note: {name}: {facts['requests'] - facts['chat_template']} prompts did not go through the chat template"
            )
    if report["reused_requests"]:
        note(f"note: {report['reused_requests']} requests were finished before")
    if out is not None:
        show(str(out))


def sample_row(task: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the harness with its task; what the rows of all tasks have in common comes first."""
    metrics = {name: row[name] for name in row["metrics"] if isinstance(row.get(name), int | float | bool)}
    right = next((metrics[name] for name in ("acc", "exact_match") if name in metrics), None)
    common = {"task": task, "id": f"{task}/{row['doc_id']}/{row['filter']}", "digest": row["doc_hash"]}
    return {**common, "correct": None if right is None else bool(right), "scores": metrics, **row}


def table_of(report: Mapping[str, Any]) -> list[list[str]]:
    """One line per metric of each task and group."""
    lines = []
    for name, scores in report["results"].items():
        samples = report.get("n-samples", {}).get(name, {}).get("effective", "")
        version = report.get("versions", {}).get(name, "")
        for metric, value in scores.items():
            label, comma, kind = metric.partition(",")
            if not comma or label.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = scores.get(f"{label}_stderr,{kind}")
            shown = f"{error:.4f}" if isinstance(error, int | float) else "-"
            lines.append([name, str(version), str(samples), label if kind == "none" else metric, f"{value:.4f}", shown])
    return lines
