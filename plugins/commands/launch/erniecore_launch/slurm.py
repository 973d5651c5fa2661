"""A run as a batch job of Slurm. One process of the job, the launcher ``slurm``, starts all ranks by srun; the script passes
signals to it, and puts the job into the queue again when the run was stopped before its end.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence

from erniecore.api import EnvironmentFault, Exit, UsageError
from erniecore_launch.job import GRACE, Job, variables

_SCRIPT = """#!/bin/bash
{directives}
# The run saves and ends with {preempted} when its time is over or the node is wanted by others; the next start resumes it.
# {environment} is a lost node or process, too. A job that was canceled is no longer RUNNING and stays out of the queue.
cd {directory}
{exports}{python} -m erniecore run {arguments} &
run=$!
trap 'kill -TERM $run' TERM
trap 'kill -USR1 $run' USR1
while true; do
  wait $run
  code=$?
  kill -0 $run 2>/dev/null || break
done
state=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)
lost=$([ $code = {environment} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeue} ] && echo yes)
if [ "$state" = RUNNING ] && {{ [ $code = {preempted} ] || [ "$lost" ]; }}; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
"""


def text(job: Job, options: Sequence[str], requeue: int) -> str:
    """The batch script.

    Args:
        options: further options of sbatch, without dashes, which replace ours.
        requeue: how many starts there may be before one that lost a node or a process is not queued again.

    Raises ``UsageError`` for an option that is none.
    """
    directives = {
        "job-name": job.name,
        "nodes": str(job.nodes),
        "ntasks-per-node": str(job.ranks_per_node),
        "chdir": str(job.directory),
        "output": f"{str(job.out).replace('%', '%%')}/slurm-%j.out",
        "open-mode": "append",
        "requeue": "",
    }
    if job.minutes:
        directives["time"] = f"{int(job.minutes)}:{round(job.minutes % 1 * 60):02d}"
        directives["signal"] = f"B:TERM@{min(GRACE // 2, int(job.minutes * 60) // 4)}"
    for option in options:
        name, _, value = option.lstrip("-").partition("=")
        if not name or any(c.isspace() for c in name):
            raise UsageError("not an option of sbatch", where="--option", found=option, expected="NAME or NAME=VALUE")
        directives[name] = value
    lines = [_directive(name, value) for name, value in directives.items()]
    return _SCRIPT.format(
        directives="\n".join(lines),
        directory=shlex.quote(str(job.directory)),
        exports="".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables().items()),
        python=shlex.quote(sys.executable),
        arguments=shlex.join([*job.arguments, *job.limit, "--launcher", "slurm"]),
        preempted=int(Exit.PREEMPTED),
        environment=int(Exit.ENVIRONMENT),
        requeue=requeue,
    )


def _directive(name: str, value: str) -> str:
    """A line for sbatch, which reads quotes as a shell does, and nothing beyond the line. Raises ``UsageError``."""
    if not value.isprintable():
        raise UsageError("sbatch reads options of one line", where=f"--option {name}", found=repr(value))
    return f"#SBATCH --{name}={shlex.quote(value)}" if value else f"#SBATCH --{name}"


def where(job: Job, number: str) -> str:
    """Where to look for the run."""
    return f"the run is {job.out}, its console {job.out / f'slurm-{number}.out'}"


def submit(job: Job, script: str) -> str:
    """Put a script into the queue; the number of the job. Raises ``EnvironmentFault`` with what sbatch says."""
    job.out.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(["sbatch", "--parsable"], input=script, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        fix = "run this where sbatch is, or print the script with --dry-run"
        raise EnvironmentFault("Slurm does not take the job", where="sbatch", found=said[-300:], fix=fix) from error
    return done.stdout.strip().partition(";")[0]
