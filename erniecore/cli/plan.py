"""``ernie plan``: what a run would need, before there is data, weights or a card. Starts nothing and imports no paddle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.cli import render
from erniecore.cli.options import (
    NOTHING,
    Chosen,
    JsonOption,
    Words,
    split_words,
    takes,
)

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded


@takes()
def plan(
    words: Words = None,
    chosen: Chosen = NOTHING,
    nproc: Annotated[int, typer.Option("--nproc", metavar="N", min=0, help="Processes on this machine.")] = 0,
    seq: Annotated[int | None, typer.Option("--seq", min=2, metavar="N", help="As data.max_seq_len=N.")] = None,
    cards: Annotated[
        int, typer.Option("--cards", metavar="N", min=0, help="Lay the run out over at most N cards.")
    ] = 0,
    card: Annotated[
        str, typer.Option("--card", metavar="TYPE", help="Of these: a name such as H100, or MEMORY:TFLOPS.")
    ] = "",
    cluster: Annotated[
        Path | None, typer.Option("--cluster", metavar="FILE", help="Machines, cards and links instead of --card.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Say what a run would need: parameters, memory, disk, work and time. Takes the words of `ernie run`.

    Exact: parameters, weights, gradients, optimizer state, checkpoints. Estimated from shapes: activations and the peak. Time
    only at a rate that `ernie bench matmul` has measured. With --cards: the fastest, the cheapest and the roomiest layout
    over several cards, with the settings for --parallel hybrid.
    """
    from erniecore.config import compose

    file, overrides = split_words(words)
    overrides += [f"data.max_seq_len={seq}"] if seq else []
    loaded = compose.load(file, overrides, chosen)
    if cards or cluster is not None:
        return show_layouts(loaded, cards, card, cluster, as_json)
    show(loaded, as_json, nproc)
    return 0


def show_layouts(loaded: Loaded, cards: int, card: str, cluster: Path | None, as_json: bool) -> int:
    """Print how the run could be laid out; 6 (out of memory) where nothing fits."""
    from erniecore.engine import entry
    from erniecore.engine.preparation.layout_plan import Wanted
    from erniecore.errors import Exit, UsageError
    from erniecore.migration.stand_in import plannable

    made = entry.layouts_loaded(plannable(loaded)[0], Wanted(cards, card, cluster))
    if made is None:
        raise UsageError("this model does not say what its layers are like", where="--model")
    if as_json:
        render.show_json(made.as_json())
    else:
        render.show(*(f"{label:<8} {text}" for label, text in made.lines()))
    return int(Exit.OK if made.found.fastest else Exit.MEMORY)


def show(loaded: Loaded, as_json: bool, processes: int = 0) -> None:
    """Print the plan, and before it what became of a file of another toolkit."""
    from erniecore.engine import entry
    from erniecore.migration.stand_in import plannable

    loaded, remark = plannable(loaded)
    made, outlook = entry.outlook_loaded(loaded, processes=processes)
    notices = [*loaded.notices, *([remark] if remark else [])]
    if as_json:
        body: dict[str, Any] = made.as_json()
        body["outlook"] = outlook.as_json() if outlook else None
        render.show_json({**body, **({"notices": notices} if notices else {})})
        return
    lines = [*(("note", text) for text in notices), *made.lines()]
    lines += (
        outlook.lines() if outlook else [("note", "this model does not say what its layers are like: no activations")]
    )
    render.show(*(f"{label:<8} {text}" for label, text in lines))
