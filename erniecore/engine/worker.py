"""One process of a run that has several: loads the settings as the starting process did, trains, and leaves how it ended
in ``control/rank-N.end.json``. Started by the run's launcher; under torchrun or srun each process is an ``ernie run``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from erniecore_system import lifeline

from erniecore import signals
from erniecore.errors import ConfigError, ErnieError, Exit, Preempted

#: kept until the process is gone: a later start waits for it, and does not read its record as one of its own
_locks = ExitStack()


def main() -> int:
    """Run the request; the exit code."""
    lifeline.follow()
    signals.install()
    from erniecore.engine.launch import STACKS, read_cluster

    signal.signal(STACKS, signal.SIG_IGN)  # until there is something to tell
    from erniecore_system.durable import replace_file

    from erniecore.engine.preparation import rundir
    from erniecore.engine.processes.job import REQUEST

    request = json.loads(os.environ.pop(REQUEST))
    out, rank = Path(request["out"]), read_cluster(os.environ).rank
    record: dict[str, Any] = {"exit": int(Exit.OK)}
    try:
        _locks.enter_context(rundir.locked(out, rundir.rank_lock(rank)))
        record["metrics"] = dict(_run(request, rank))
    except BaseException as error:
        record |= describe(error)
        if record["exit"] == Exit.BUG:
            with suppress(OSError):
                traceback.print_exc()
    signals.ignore()
    record["time"] = time.time()
    replace_file(rundir.end_path(out, rank), json.dumps(record).encode())
    return int(record["exit"])


def _run(request: dict[str, Any], rank: int) -> Any:
    from erniecore.config.compose import load
    from erniecore.engine.entry import run_loaded

    file = None if request["file"] is None else Path(request["file"])
    loaded = load(file, request["overrides"], request["flags"], os.environ, command=request["command"])
    console = request["console"] if rank == 0 else "none"
    return run_loaded(loaded, console=console, name=request["name"], launched=True).metrics


def describe(error: BaseException) -> dict[str, Any]:
    """``error`` as JSON; ``exits.restored`` makes it again."""
    found = None if isinstance(error, Preempted) else signals.outcome(error, ["run"])
    if found is not None and found[0] == Exit.INTERRUPTED:
        return {"exit": int(Exit.INTERRUPTED), "class": "KeyboardInterrupt", "fields": {}}
    if found is not None:
        what, _, fix = found[1].partition("; ")
        error = Preempted(what, fix=fix)
    if isinstance(error, ErnieError):
        problems = [asdict(p) for p in error.problems] if isinstance(error, ConfigError) else []
        facts = {"class": type(error).__name__, "fields": error.fields(), "problems": problems}
        return {"exit": int(error.exit_code), **facts}
    return {"exit": int(Exit.BUG), "class": "", "fields": {"message": f"{type(error).__name__}: {error}"}}


if __name__ == "__main__":
    sys.exit(main())
