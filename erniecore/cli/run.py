"""``ernie run``: read the settings, then plan, train or show the demo. Trains nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from erniecore.cli import render
from erniecore.cli.options import (
    NOTHING,
    Arguments,
    Chosen,
    JsonOption,
    MasterOption,
    NodeRankOption,
    NodesOption,
    NprocOption,
    opens_models,
    split_arguments,
    takes,
)
from erniecore.errors import UsageError

if TYPE_CHECKING:
    from erniecore.config.compose import LoadedSettings


@opens_models
@takes()
def run(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="auto|never|must|DIR", help="Checkpoint to resume from; default auto: the newest."
        ),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Start a new run instead of resuming (--resume never).")] = False,
    nproc: NprocOption = None,
    nodes: NodesOption = None,
    node_rank: NodeRankOption = None,
    master: MasterOption = None,
    restarts: Annotated[
        int | None,
        typer.Option("--restarts", metavar="N", min=0, help="Restart up to N times when a process is killed or lost."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if the plan needs more memory than is free.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; start nothing.")] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Run an embedded example on this machine: text or vision.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Train, evaluate and save.

    Settings come from FILE, from SECTION.KEY=VALUE arguments and from the flags; `ernie config show` takes the same arguments
    and prints every value with its source. FILE may also be a settings file of another toolkit (`ernie plugins --kind
    importer`), which is converted. The same command continues a run that has not finished.
    """
    if new and resume is not None:
        raise UsageError("--new and --resume exclude each other", fix="leave one of them out")
    resume = "never" if new else resume
    if demo:
        return _demo(args or ["text"], chosen["out"] or "", as_json)
    from erniecore.config import compose
    from erniecore.engine import entry

    file, overrides = split_arguments(args)
    start = {"nproc": nproc, "nodes": nodes, "node_rank": node_rank, "master": master, "restarts": restarts}
    loaded = compose.load(file, overrides, {**chosen, "resume": resume, **start})
    if not dry_run:
        entry.run_loaded(loaded, console="json" if as_json else "auto", note=render.note, force=force)
        return 0
    _plan(loaded, as_json)
    return 0


def _plan(loaded: LoadedSettings, as_json: bool) -> None:
    """Print the plan, after the notes on a settings file of another toolkit."""
    from erniecore.config.absent_model import plannable
    from erniecore.engine import entry

    loaded, recipe = plannable(loaded)
    plan = entry.plan_loaded(loaded)
    notes = [*loaded.notes, *([recipe] if recipe else [])]
    if as_json:
        render.show_json({**plan.as_json(), **({"notes": notes} if notes else {})})
    else:
        lines = [*(("note", text) for text in notes), *plan.lines()]
        render.show_fields(lines)


def _demo(stories: list[str], out: str, as_json: bool) -> int:
    from erniecore import registry

    if as_json:
        raise UsageError("--demo tells a story and has no --json", fix="leave --json out")
    if len(stories) > 1:
        raise UsageError("--demo takes one name, and no settings", found=" ".join(stories), expected="text or vision")
    return int(registry.load_object(registry.find("command", "demo"))(stories[0], out))
