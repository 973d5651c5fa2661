"""One process of a run that has several: loads the settings as the starting process did, trains, and leaves how it ended
in ``control/rank-N.end.json``. Started by the run's launcher; under torchrun or srun each process is an ``ernie run``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from erniecore.durable import replace_file
from erniecore.engine.launch import STACKS, read_cluster
from erniecore.engine.preparation.rundir import end_path
from erniecore.engine.processes.job import PARENT, REQUEST
from erniecore.errors import ConfigError, ErnieError, Exit

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the request; the exit code."""
    request = json.loads(os.environ.pop(REQUEST))
    signal.signal(STACKS, signal.SIG_IGN)  # until there is something to tell
    _follow_parent(int(os.environ.pop(PARENT, "0")))
    out, rank = Path(request["out"]), read_cluster(os.environ).rank
    record: dict[str, Any] = {"exit": int(Exit.OK)}
    try:
        record["metrics"] = dict(_run(request, rank))
    except BaseException as error:
        record |= describe(error)
        if not isinstance(error, ErnieError):
            traceback.print_exc()
    record["time"] = time.time()
    replace_file(end_path(out, rank), json.dumps(record).encode())
    return int(record["exit"])


def _run(request: dict[str, Any], rank: int) -> Any:
    from erniecore.config.compose import load
    from erniecore.engine.entry import run_loaded

    file = None if request["file"] is None else Path(request["file"])
    loaded = load(file, request["overrides"], request["flags"], os.environ, command=request["command"])
    console = request["console"] if rank == 0 else "none"
    return run_loaded(loaded, console=console, name=request["name"], launched=True).metrics


def describe(error: BaseException) -> dict[str, Any]:
    """``error`` as JSON; :func:`restored` makes it again."""
    if isinstance(error, KeyboardInterrupt):
        return {"exit": int(Exit.INTERRUPTED), "class": "KeyboardInterrupt", "fields": {}}
    if isinstance(error, ErnieError):
        problems = [asdict(p) for p in error.problems] if isinstance(error, ConfigError) else []
        facts = {"class": type(error).__name__, "fields": error.fields(), "problems": problems}
        return {"exit": int(error.exit_code), **facts}
    return {"exit": int(Exit.BUG), "class": "", "fields": {"message": f"{type(error).__name__}: {error}"}}


def _follow_parent(parent: int) -> None:
    """Be asked to stop when the starting process dies, whatever kills it (Linux)."""
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
