"""``ernie plan``: what a run would need, before there is data, weights or a device. Starts nothing and imports no paddle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.api import ErnieError, Exit, UsageError
from erniecore.api.command import (
    NOTHING,
    Arguments,
    Chosen,
    JsonOption,
    load_settings,
    opens_models,
    planned_run,
    show_fields,
    show_json,
    smaller_settings,
    split_arguments,
    takes,
)
from erniecore.api.planning import size_text

if TYPE_CHECKING:
    from erniecore.api.command import LoadedSettings
    from erniecore.api.planning import PlannedRun
    from erniecore_planner.estimate import Estimate
    from erniecore_planner.layout_plan import Wanted

#: part of the memory that a change must save to be named
_SAVES = 0.02


@opens_models
@takes()
def plan(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
    nproc: Annotated[int, typer.Option("--nproc", metavar="N", min=0, help="Processes on this machine.")] = 0,
    seq: Annotated[int | None, typer.Option("--seq", min=2, metavar="N", help="As data.max_seq_len=N.")] = None,
    accelerators: Annotated[
        int, typer.Option("--accelerators", metavar="N", min=0, help="Lay the run out over at most N accelerators.")
    ] = 0,
    accelerator: Annotated[
        str, typer.Option("--accelerator", metavar="TYPE", help="Of these: a name such as H100, or MEMORY:TFLOPS.")
    ] = "",
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", metavar="FILE", help="Machines, accelerators and links instead of --accelerator."),
    ] = None,
    smaller: Annotated[
        bool, typer.Option("--smaller", help="Also changes of settings with which the run needs less memory.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Estimate parameters, memory, disk space, FLOPs and time of a run, with the arguments of `ernie run`.

    Exact: parameters, weights, gradients, optimizer state, checkpoints, KV cache. Estimated from shapes: activations, workspace
    and the peak. Step times only from what `ernie bench` has measured. With --accelerators: the fastest layout over
    that many, the cheapest and the one that needs least memory, with their settings.
    """
    file, overrides = split_arguments(args)
    overrides += [f"data.max_seq_len={seq}"] if seq else []
    loaded = load_settings(file, overrides, chosen)
    if accelerators or cluster is not None:
        from erniecore_planner.layout_plan import Wanted

        def accepts(strategy: str, more: Sequence[str]) -> bool:
            return _accepted(file, [*overrides, *more], {**chosen, "parallel": strategy})

        return show_layouts(loaded, Wanted(accelerators, accelerator, cluster), as_json, accepts)
    again = (lambda more: load_settings(file, [*overrides, *more], chosen)) if smaller else None
    show_plan(loaded, as_json, nproc, again)
    return 0


def show_layouts(
    loaded: LoadedSettings, wanted: Wanted, as_json: bool, accepts: Callable[[str, Sequence[str]], bool]
) -> int:
    """Print how the run could be laid out, as far as its other settings allow; 6 (out of memory) where nothing fits."""
    from erniecore_planner.layout_plan import layout_plan

    run, _ = planned_run(loaded)
    made = layout_plan(run, wanted, accepts=accepts)
    if made is None:
        raise UsageError("this model does not say what its layers are like", where="--model")
    if as_json:
        show_json(made.as_json())
    else:
        show_fields(made.lines())
    return int(Exit.OK if made.found.fastest else Exit.MEMORY)


def _accepted(file: Path | None, overrides: Sequence[str], flags: Mapping[str, Any]) -> bool:
    """Whether a run of two processes with these settings passes the checks before it starts."""
    try:
        planned_run(load_settings(file, overrides, flags), 2)
    except ErnieError:
        return False
    return True


def show_plan(
    loaded: LoadedSettings,
    as_json: bool,
    processes: int = 0,
    again: Callable[[Sequence[str]], LoadedSettings] | None = None,
) -> None:
    """Print the plan, and before it what became of a file of another toolkit; after it, with ``again``, which loads the settings
    with further ones, the changes that need less memory."""
    from erniecore_planner.estimate import estimate

    run, notes = planned_run(loaded, processes)
    found = estimate(run)
    fewer = _smaller(loaded, run, found, again, processes) if again and found else []
    if as_json:
        body: dict[str, Any] = {**run.plan.as_json(), "estimate": found.as_json() if found else None}
        body |= {"smaller": fewer} if again else {}
        show_json({**body, **({"notes": notes} if notes else {})})
        return
    lines = [*(("note", text) for text in notes), *replace(run.plan, forecast=None).lines()]
    lines += found.lines() if found else [("note", "this model does not say what its layers are like: no activations")]
    lines += [("smaller", f"{size_text(row['peak_memory'])} with {' '.join(row['settings'])}") for row in fewer]
    show_fields(lines)


def _smaller(
    loaded: LoadedSettings,
    run: PlannedRun,
    now: Estimate,
    again: Callable[[Sequence[str]], LoadedSettings],
    processes: int,
) -> list[dict[str, Any]]:
    """``settings`` (overrides), ``peak_memory`` and ``process_memory`` (bytes) of changes that save memory, those that cost
    least first."""
    from erniecore_planner.estimate import estimate

    rows = []
    for change in smaller_settings(loaded, run):
        try:
            found = estimate(planned_run(again(change), processes)[0])
        except ErnieError:  # this run cannot have them
            continue
        if found and found.peak_memory < (1 - _SAVES) * now.peak_memory:
            sizes = {"peak_memory": found.peak_memory, "process_memory": found.process_memory}
            rows.append({"settings": list(change), **sizes})
    return rows
