"""How ranks ended: what each left behind, and which error the run ends with. No paddle."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erniecore_system.files import read_json

from erniecore import errors
from erniecore.engine.preparation.rundir import end_path
from erniecore.errors import ConfigError, EnvironmentFault, ErnieError, Exit, Problem
from erniecore.signals import InterruptedTwice
from erniecore.types.launcher import RankExit


def read_exit(out: Path, rank: int, status: int, ended: float, *, stopped: bool = False, node: str = "") -> RankExit:
    """The exit of a rank with what it left in the run directory, which is removed.

    Args:
        status: exit code or, below zero, the number of the signal. ended: when it was seen to have ended.
        stopped: the launcher ended it. node: its node, where there are several.
    """
    path = end_path(out, rank)
    record: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        record = read_json(path)
    path.unlink(missing_ok=True)
    return RankExit(rank, status, float(record.get("time", ended)), record, stopped, node)


def result(exits: Sequence[RankExit], out: Path) -> Mapping[str, float]:
    """The metrics of rank 0. Raises the error of the rank that failed first."""
    failed = sorted((e for e in exits if e.status), key=lambda e: (e.follows, e.time))
    if not failed:
        metrics: Mapping[str, float] = min(exits, key=lambda e: e.rank).record.get("metrics", {})
        return metrics
    error = restored(failed[0], out)
    stuck = [str(e.rank) for e in exits if e.stopped]
    if isinstance(error, ErnieError) and failed[0].follows and stuck:
        error.fix = f"rank {', '.join(stuck)} no longer answered and was ended; look at its log and its stacks in {out / 'logs'}"
    raise error


def restored(ended: RankExit, out: Path) -> BaseException:
    """What ended a rank, as an exception of this process; the place names the rank, its node and its log."""
    record = ended.record
    if ended.rank < 0:  # a node
        fields = dict(record["fields"])
        return EnvironmentFault(fields.pop("message"), **fields)
    node = f" on {ended.node}" if ended.node else ""
    place = f"rank {ended.rank}{node}, {out / 'logs' / f'rank-{ended.rank}.out'}"
    if not record.get("fields") and not record.get("class"):
        how = (
            f"was killed by {_signal_name(-ended.status)}" if ended.status < 0 else f"ended with status {ended.status}"
        )
        fix = "continue with the same command; if it happens again, look at memory and at the kernel's log"
        return EnvironmentFault(f"a process of the run {how}", where=place, fix=fix, code="ERN-E020")
    if record["class"] == "KeyboardInterrupt":
        return InterruptedTwice()
    fields = dict(record["fields"])
    if record.get("problems"):
        return ConfigError([Problem(**problem) for problem in record["problems"]])
    if not record["class"]:
        fields["fix"] = "this is a bug in erniecore or in a plugin; the log of the rank has the traceback"
    found = getattr(errors, record["class"], ErnieError)
    where = fields.pop("where", "")
    error: ErnieError = found(fields.pop("message"), where=f"{where} ({place})" if where else place, **fields)
    error.exit_code = Exit(record["exit"])
    return error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
