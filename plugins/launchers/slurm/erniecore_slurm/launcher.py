"""The ranks of a run as tasks of one ``srun`` on all nodes of a job. The run directory is on a file system that all nodes
share; in it each task leaves its output and its exit status, from which this process knows how every rank ended. No paddle.

Signals go to the tasks through ``scancel --signal``: srun itself would end the step at once when it gets SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import EnvironmentFault
from erniecore.api.launcher import GRACE, NODE, Launcher, Limits, RankExit, RankJob, RunningRanks, free_port, read_exit

if TYPE_CHECKING:
    from erniecore_slurm.config import SlurmConfig

#: seconds between two looks at the run directory
_PAUSE = 0.1

#: One task: its output goes where every launcher puts it, the console belongs to rank 0. The traps keep the shell alive until
#: the rank has handled the signal, and are no handlers of the rank itself.
_TASK = """logs=$1; shift; rank=$SLURM_PROCID
trap : TERM INT HUP USR1 USR2
[ "$rank" = 0 ] && echo "$SLURM_STEP_ID" > "$logs/slurm-step.new" && mv "$logs/slurm-step.new" "$logs/slurm-step"
export {node}="$SLURMD_NODENAME"
if [ "$rank" = 0 ]; then "$@" 2> "$logs/rank-0.out"; else "$@" > "$logs/rank-$rank.out" 2>&1; fi
status=$?
echo "$status" > "$logs/slurm-status-$rank.new" && mv "$logs/slurm-status-$rank.new" "$logs/slurm-status-$rank"
exit "$status"
"""


class SlurmLauncher(Launcher):
    """A launcher within a job of Slurm: one step (srun) for each start of the run."""

    def __init__(self, config: SlurmConfig) -> None:
        self.ranks_per_node, self.restarts = config.nproc, config.restarts
        self.options = config.srun
        self.job = os.environ["SLURM_JOB_ID"]
        self.names: Sequence[str] = ()

    def open(self, note: Callable[[str], None]) -> None:
        """Ask Slurm for the nodes of the job. Raises ``EnvironmentFault`` where its commands are missing or fail."""
        self.names = _ask("scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")).split()
        note(f"job {self.job} of Slurm on {', '.join(self.names)}")

    def start(self, job: RankJob) -> SlurmRanks:
        """Start the tasks. Raises ``EnvironmentFault``: srun cannot be started, or more nodes than ranks."""
        count = job.ranks_per_node
        if count % len(self.names):
            raise EnvironmentFault(
                "the nodes of the job would not have equally many ranks",
                where="SLURM_JOB_NODELIST",
                found=f"{count} ranks on {len(self.names)} nodes",
                fix="ask for a number of nodes that divides the number of ranks",
            )
        return SlurmRanks(job, self.job, self.names, self._address(), self.options)

    def _address(self) -> Mapping[str, str]:
        """Where rank 0, on the first node, will listen."""
        first = self.names[0]
        fields = dict(
            word.split("=", 1) for word in _ask("scontrol", "show", "node", first, "-o").split() if "=" in word
        )
        here = os.environ.get("SLURMD_NODENAME") == first
        # the first node cannot be asked: a port below those that Linux gives to outgoing connections
        port = free_port() if here else 20000 + int(self.job) % 10000
        return {"MASTER_ADDR": fields.get("NodeAddr", first), "MASTER_PORT": str(port)}


class SlurmRanks(RunningRanks):
    """The tasks of one step."""

    def __init__(
        self, job: RankJob, number: str, names: Sequence[str], address: Mapping[str, str], options: Sequence[str]
    ) -> None:
        self.out, self.number, self.names = job.out, number, names
        self.count, self.logs = job.ranks_per_node, job.out / "logs"
        self.asked: set[int] = set()
        self._sending: list[subprocess.Popen[bytes]] = []
        for old in [self._step_file, *map(self._status_file, range(self.count))]:
            old.unlink(missing_ok=True)
        arguments = [
            "srun",
            f"--nodes={len(names)}",
            f"--ntasks={self.count}",
            f"--ntasks-per-node={self.count // len(names)}",
        ]
        arguments += ["--distribution=block", "--kill-on-bad-exit=0", "--wait=0", *options]
        arguments += ["sh", "-c", _TASK.replace("{node}", NODE), "erniecore", str(self.logs), *job.argv]
        with (self.logs / "srun.out").open("wb") as said:
            try:
                self.process = subprocess.Popen(
                    arguments,
                    env={**os.environ, **job.environment, **address},
                    stdin=subprocess.DEVNULL,
                    stderr=said,
                    start_new_session=True,
                )
            except OSError as error:
                raise EnvironmentFault(
                    "srun cannot be started", where="srun", found=str(error), code="ERN-E022"
                ) from error

    @property
    def _step_file(self) -> Path:
        return self.logs / "slurm-step"

    def _status_file(self, rank: int) -> Path:
        return self.logs / f"slurm-status-{rank}"

    def _statuses(self) -> dict[int, tuple[int, float]]:
        """(exit status, when) of the ranks that have ended."""
        found = {}
        for rank in range(self.count):
            path = self._status_file(rank)
            with suppress(OSError, ValueError):
                found[rank] = int(path.read_text()), path.stat().st_mtime
        return found

    def wait(self) -> Sequence[RankExit]:
        """Watch the step until all of its tasks have ended."""
        limits = Limits()
        while self.process.poll() is None:
            ended = self._statuses()
            failed = any(status for status, _ in ended.values())
            if failed or 0 in ended:
                limits.begin(failed)
            number = limits.due()
            if number is not None:
                self.asked |= set(range(self.count)) - set(ended)
                self.signal(number)
            time.sleep(_PAUSE)
        return self._exits()

    def _exits(self) -> Sequence[RankExit]:
        ended, now, each = self._statuses(), time.time(), self.count // len(self.names)
        if not ended and not self._step_file.exists():
            said = (self.logs / "srun.out").read_text(errors="replace").strip().splitlines()
            raise EnvironmentFault(
                "Slurm did not start the ranks", where=f"job {self.number}", found=(said or ["nothing said"])[-1],
                fix=f"the whole output of srun is in {self.logs / 'srun.out'}", code="ERN-E022",
            )  # fmt: skip
        exits = []
        for rank in range(self.count):
            status, when = ended.get(
                rank, (-int(signal.SIGKILL), now)
            )  # killed together with its shell, or with its node
            node, stopped = self.names[rank // each], rank in self.asked
            found = read_exit(self.out, rank, status, when, stopped=stopped, node=node)
            if status > 128 and not found.record:  # how the shell says that a signal has ended it
                found = replace(found, status=128 - status)
            exits.append(found)
        return exits

    def signal(self, number: int) -> None:
        """Through Slurm to all tasks; before they have started, to srun, which then gives up."""
        try:
            step = f"{self.number}.{self._step_file.read_text().strip()}"
        except OSError:
            self.process.send_signal(signal.SIGTERM)
            return
        name = signal.Signals(number).name.removeprefix("SIG")
        arguments = ["scancel", "--quiet", f"--signal={name}", step]
        self._sending.append(subprocess.Popen(arguments, stdin=subprocess.DEVNULL))

    def close(self) -> None:
        """End the step, whatever still runs in it."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
            self.process.kill()
        for process in [self.process, *self._sending]:
            process.wait()


def _ask(*arguments: str) -> str:
    """What a command of Slurm prints. Raises ``EnvironmentFault`` where it is missing or fails."""
    try:
        return subprocess.run(arguments, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise EnvironmentFault(
            "a command of Slurm failed",
            where=" ".join(arguments),
            found=said[-200:],
            fix="are Slurm's commands on the PATH here?",
        ) from error
