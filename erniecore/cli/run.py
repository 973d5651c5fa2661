"""``ernie run``: read the settings, then plan, train or show the demo. Trains nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from erniecore.cli import render
from erniecore.cli.options import (
    NOTHING,
    Chosen,
    JsonOption,
    MasterOption,
    NodeRankOption,
    NodesOption,
    NprocOption,
    Words,
    split_words,
    takes,
)
from erniecore.errors import UsageError

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded


@takes()
def run(
    words: Words = None,
    chosen: Chosen = NOTHING,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="auto|never|must|DIR", help="Where to continue; default auto.")
    ] = None,
    nproc: NprocOption = 0,
    nodes: NodesOption = 1,
    node_rank: NodeRankOption = 0,
    master: MasterOption = "",
    restarts: Annotated[
        int,
        typer.Option("--restarts", metavar="N", min=0, help="Start again so often when a process is killed or lost."),
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; start nothing.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Run the embedded example on this machine.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Train, evaluate and save.

    Settings come from FILE, from SECTION.KEY=VALUE words and from the flags; `ernie config show` takes the same words
    and prints every value with its source. FILE may be a training file of ERNIEKit: it is converted on the way.
    """
    if demo:
        return _demo(chosen["out"] or "", as_json)
    from erniecore.config import compose
    from erniecore.engine import entry
    from erniecore.engine.processes.nodes import Site

    file, overrides = split_words(words)
    loaded = compose.load(file, overrides, {**chosen, "resume": resume})
    if not dry_run:
        console = "json" if as_json else "auto"
        site = Site(nodes, node_rank, master)
        entry.run_loaded(loaded, console=console, processes=nproc, restarts=restarts, tell=render.note, site=site)
        return 0
    _plan(loaded, as_json, nproc * nodes)
    return 0


def _plan(loaded: Loaded, as_json: bool, processes: int) -> None:
    """Print the plan, and before it what became of a file of another toolkit."""
    from erniecore.engine import entry
    from erniecore.migration.stand_in import plannable

    loaded, remark = plannable(loaded)
    plan = entry.plan_loaded(loaded, processes=processes)
    notices = [*loaded.notices, *([remark] if remark else [])]
    if as_json:
        render.show_json({**plan.as_json(), **({"notices": notices} if notices else {})})
    else:
        lines = [*(("note", text) for text in notices), *plan.lines()]
        render.show(*(f"{label:<7} {text}" for label, text in lines))


def _demo(out: str, as_json: bool) -> int:
    from erniecore import demo

    if as_json:
        raise UsageError("--demo tells a story and has no --json", fix="leave --json out")
    return demo.main(out)
