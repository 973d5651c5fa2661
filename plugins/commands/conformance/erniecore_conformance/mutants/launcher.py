"""Launchers with one thing wrong."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from erniecore.api import hookimpl
from erniecore.api.launcher import Launcher, LauncherConfig, RankExit, RankJob, RunningRanks
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.launcher import ToyLauncher, ToyLauncherPlugin, ToyRanks


class NoLauncher(ToyLauncherPlugin):
    """Gives a class, not a launcher."""

    @hookimpl
    def ernie_open_launcher(self, config: LauncherConfig) -> Launcher:
        return ToyLauncher  # type: ignore[return-value]


class ForgetsRestarts(ToyLauncherPlugin):
    """Ignores the settings of its section."""

    @hookimpl
    def ernie_open_launcher(self, config: LauncherConfig) -> Launcher:
        return ToyLauncher(LauncherConfig())


class _Alone(ToyLauncher):
    def start(self, job: RankJob) -> RunningRanks:
        return super().start(replace(job, environment={}))


class ForgetsVariables(ToyLauncherPlugin):
    """Ranks lack the job's variables."""

    @hookimpl
    def ernie_open_launcher(self, config: LauncherConfig) -> Launcher:
        return _Alone(config)


class _SilentRanks(ToyRanks):
    def wait(self) -> Sequence[RankExit]:
        return [replace(ended, stopped=False) for ended in super().wait()]


class _DeafRanks(ToyRanks):
    def signal(self, number: int) -> None:
        self.processes[0].send_signal(signal.SIGKILL)


class _LeavingRanks(ToyRanks):
    closed = False

    def close(self) -> None:
        self.closed = True

    def wait(self) -> Sequence[RankExit]:
        if not self.closed:
            return super().wait()
        super().close()  # the check need not wait for them
        return [replace(ended, status=0) for ended in super().wait()]


def _with(ranks: type[ToyRanks]) -> type[Launcher]:
    class Other(ToyLauncher):
        def start(self, job: RankJob) -> RunningRanks:
            found = super().start(job)
            assert isinstance(found, ToyRanks)
            return ranks(job, found.processes)

    return Other


class SaysNothingOfStopping(ToyLauncherPlugin):
    """A rank that was ended looks as if it had failed by itself."""

    @hookimpl
    def ernie_open_launcher(self, config: LauncherConfig) -> Launcher:
        return _with(_SilentRanks)(config)  # type: ignore[call-arg]


class KillsInsteadOfAsking(ToyLauncherPlugin):
    """Any signal kills rank 0."""

    @hookimpl
    def ernie_open_launcher(self, config: LauncherConfig) -> Launcher:
        return _with(_DeafRanks)(config)  # type: ignore[call-arg]


class LeavesRanksBehind(ToyLauncherPlugin):
    """``close`` does not end the ranks."""

    @hookimpl
    def ernie_open_launcher(self, config: LauncherConfig) -> Launcher:
        return _with(_LeavingRanks)(config)  # type: ignore[call-arg]


MUTANTS = (
    mutant("launcher_is_a_launcher", NoLauncher),
    mutant("launcher_is_a_launcher", ForgetsRestarts),
    mutant("launcher_tells_ranks_their_place", ForgetsVariables),
    mutant("launcher_ends_the_others_when_one_fails", SaysNothingOfStopping),
    mutant("launcher_passes_signals_on", KillsInsteadOfAsking),
    mutant("launcher_leaves_no_rank_behind", LeavesRanksBehind),
)
