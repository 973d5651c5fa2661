"""``ernie launch``: read the settings of a run here, and put the run into the queue of a cluster. Trains nothing itself."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import Annotated

import typer

from erniecore.api.command import (
    NOTHING,
    Arguments,
    Chosen,
    JsonOption,
    load_settings,
    show,
    show_json,
    split_arguments,
    takes,
)


class Scheduler(str, Enum):
    """Where a job can go; the module of that name writes and submits it."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"


@takes()
def launch(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
    to: Annotated[Scheduler, typer.Option("--to", help="The scheduler.")] = Scheduler.SLURM,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Nodes that share the ranks.")] = 1,
    time: Annotated[
        str, typer.Option("--time", metavar="LIMIT", help="Of one start, as sbatch reads it: 90, 12:00:00, 1-12.")
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="Of sbatch, e.g. partition=gpu; of the pods, e.g. image=…; repeatable.",
        ),
    ] = None,
    requeue: Annotated[
        int,
        typer.Option(
            "--requeue", metavar="N", min=0, help="Queue it again after a loss of nodes or processes, at most N times."
        ),
    ] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job; submit nothing.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Submit a run to the queue of a cluster, with the arguments of `ernie run`.

    The settings are checked here, before anything is queued. The job starts `ernie run` with the same arguments; when its
    time is over or it is preempted, the run saves, and the job is queued again until the run has finished.
    """
    from erniecore_launch.job import job_of

    file, overrides = split_arguments(args)
    job = job_of(load_settings(file, overrides, chosen), chosen, args or [], nodes, time)
    scheduler = import_module(f"erniecore_launch.{to.value}")
    text = scheduler.text(job, option or [], requeue)
    if dry_run:
        show_json({"script": text}) if as_json else show(text)
        return 0
    number = scheduler.submit(job, text)
    if as_json:
        show_json({"job": number, "out": str(job.out)})
    else:
        show(f"job {number} is in the queue; {scheduler.where(job, number)}")
    return 0
