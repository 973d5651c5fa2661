"""A run whose ranks are forked from this process, which has imported paddle already: a restart costs a fraction of a
second instead of an import. For tests that start a run many times; users' runs begin with fresh processes.

``python tests/helpers/forked.py REQUEST``: the kill loop of ``kills.py`` on such a run; prints its report as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kills import fingerprint, kill_loop
from warm import import_all

from erniecore.engine.launch import paddle_variables
from erniecore.engine.processes.network import free_port
from erniecore.types.run import Cluster


class Forked:
    """A run of ``count`` ranks, each a fork of this process.

    Args:
        words: ``section.key=value``. out: its run directory.
    """

    def __init__(self, words: Sequence[str], out: Path, count: int) -> None:
        self.words, self.out, self.count = list(words), out, count
        self._alive: dict[int, int] = {}  # process -> rank
        self._status: int | None = None

    def start(self) -> None:
        master = f"127.0.0.1:{free_port()}"
        for rank in range(self.count):
            cluster = Cluster(
                rank=rank, world_size=self.count, local_rank=rank, master=master if self.count > 1 else ""
            )
            pid = os.fork()
            if not pid:
                _be(cluster, self.words, self.out)
            self._alive[pid] = rank

    def ranks(self) -> list[int]:
        self._reap()
        return sorted(self._alive, key=lambda pid: self._alive[pid])

    def _reap(self) -> None:
        for pid in list(self._alive):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._alive.pop(pid)
                self._status = max(self._status or 0, abs(os.waitstatus_to_exitcode(status)))

    def collected(self, before: Sequence[int], limit: float) -> bool:
        end = time.monotonic() + limit
        while self.ranks() and time.monotonic() < end:
            time.sleep(0.005)
        return not self._alive

    def go_on(self) -> None:
        self.stop()
        self._status = None
        self.start()

    def finished(self) -> int | None:
        self._reap()
        return None if self._alive else self._status

    def stop(self) -> None:
        for pid in list(self._alive):
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        self._alive.clear()


def _be(cluster: Cluster, words: Sequence[str], out: Path) -> None:
    """In the fork: be one rank, and end."""
    code = 1
    try:
        (out / "logs").mkdir(parents=True, exist_ok=True)
        log = os.open(out / "logs" / f"rank-{cluster.rank}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(paddle_variables(cluster))
        _run(words)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(words: Sequence[str]) -> None:
    from erniecore.config.compose import load
    from erniecore.engine.entry import run_loaded

    run_loaded(load(None, words, {}, os.environ), console="none")


def main() -> None:
    """Read the request, run the loop for each case, print the reports."""
    request = json.loads(sys.argv[1])
    # its environment is that of several ranks
    import_all(paddle_variables(Cluster(world_size=2, master="127.0.0.1:1")))
    reports = []
    for case in request["cases"]:
        out, straight = Path(case["out"]), Path(case["straight"])
        if not (straight / "ckpt").exists():
            _straight(case, straight)
        launch = Forked([*case["words"], f"run.out={out}"], out, case["count"])
        report = kill_loop(launch, out, case["kills"], seed=case["seed"], longest=case["longest"])
        steps = case["steps"]
        report.equal = not report.hangs and fingerprint(out, steps) == fingerprint(straight, steps)
        reports.append(report.summary())
    print(json.dumps(reports))


def _straight(case: dict[str, Any], out: Path) -> None:
    """The run that nobody disturbs."""
    launch = Forked([*case["words"], f"run.out={out}"], out, case["count"])
    launch.start()
    while launch.finished() is None:
        time.sleep(0.02)
    assert launch.finished() == 0, f"the undisturbed run failed; see {out / 'logs'}"


if __name__ == "__main__":
    main()
