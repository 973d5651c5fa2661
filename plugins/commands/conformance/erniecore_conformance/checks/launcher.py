"""Checks for launchers: two ranks that say where they are, fail, hang or wait for a signal. No paddle.

A launcher that needs more than this machine announces them in ``expected_failures``.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from erniecore.api.launcher import Launcher, RankExit, RankJob, RunningRanks
from erniecore_conformance.check import Check
from erniecore_conformance.expect import ensure, ensure_equal
from erniecore_conformance.subjects import Subject

#: seconds that ranks which wait have; a launcher has ended them long before
LONG = 60
_PLACE = """
import os, pathlib, sys
names = ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_LOCAL_RANK", "PADDLE_MASTER", "TOY")
text = " ".join(os.environ.get(name, "-") for name in names)
pathlib.Path(sys.argv[1], "place-" + os.environ["PADDLE_TRAINER_ID"]).write_text(text)
"""
_FAILS = f"""
import os, sys, time
sys.exit(7) if os.environ.get("PADDLE_TRAINER_ID") == "1" else time.sleep({LONG})
"""
_WAITS = f"""
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
pathlib.Path(sys.argv[1], "ready-" + os.environ["PADDLE_TRAINER_ID"]).touch()
time.sleep({LONG})
"""


def _launcher(subject: Subject) -> Launcher:
    found: Launcher = subject.call("ernie_open_launcher", config=subject.config())
    return found


@contextlib.contextmanager
def _started(subject: Subject, code: str) -> Iterator[tuple[Path, RunningRanks]]:
    """Two ranks that run ``code``; its first argument is the run directory."""
    with tempfile.TemporaryDirectory() as home:
        out, launcher = Path(home), _launcher(subject)
        for name in ("logs", "control"):
            (out / name).mkdir()
        job = RankJob((sys.executable, "-c", code, home), {"TOY": "yes"}, out, ranks_per_node=2)
        launcher.open(lambda line: None)
        try:
            with contextlib.closing(launcher.start(job)) as ranks:
                yield out, ranks
        finally:
            launcher.close()


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LONG / 2
    while not condition():
        ensure(time.monotonic() < end, what)
        time.sleep(0.02)


def _by_rank(exits: Sequence[RankExit]) -> dict[int, RankExit]:
    found = {ended.rank: ended for ended in exits}
    ensure_equal(sorted(found), [0, 1], "ranks whose exits are known")
    return found


def check_launcher_is_a_launcher(subject: Subject) -> None:
    """The hook gives an ``erniecore.api.launcher.Launcher`` for one node, with the restarts of its section."""
    launcher = _launcher(subject)
    ensure(isinstance(launcher, Launcher), f"{type(launcher).__name__} does not derive from Launcher")
    ensure_equal((launcher.nodes, launcher.node_rank), (1, 0), "nodes and node_rank by default")
    config = subject.config(restarts=3, nproc=2)
    launcher = subject.call("ernie_open_launcher", config=config)
    ensure_equal((launcher.restarts, launcher.ranks_per_node), (3, 2), "restarts and ranks_per_node of the section")


def check_launcher_tells_ranks_their_place(subject: Subject) -> None:
    """Each rank finds its place and the job's variables in its environment, and exits with its status."""
    with _started(subject, _PLACE) as (out, ranks):
        exits = _by_rank(ranks.wait())
        ensure_equal([exits[rank].status for rank in (0, 1)], [0, 0], "statuses")
        places = [(out / f"place-{rank}").read_text().split() for rank in (0, 1)]
    for rank, (number, world, local, master, toy) in enumerate(places):
        ensure_equal((number, world, local, toy), (str(rank), "2", str(rank), "yes"), f"place of rank {rank}")
        ensure(":" in master, f"rank {rank} has no address of the store: {master!r}")
    ensure_equal(places[0][3], places[1][3], "address of the store on both ranks")


def check_launcher_ends_the_others_when_one_fails(subject: Subject) -> None:
    """A rank that fails is reported as it ended; the other, which would wait, is ended and marked as stopped."""
    began = time.monotonic()
    with _started(subject, _FAILS) as (_, ranks):
        exits = _by_rank(ranks.wait())
    ensure(time.monotonic() - began < LONG, "the other rank was waited for")
    ensure_equal((exits[1].status, exits[1].stopped), (7, False), "status of the rank that failed, and stopped")
    ensure(exits[0].stopped, "the rank that was ended is not marked as stopped")


def check_launcher_passes_signals_on(subject: Subject) -> None:
    """A signal reaches every rank, which may still exit as it wants."""
    with _started(subject, _WAITS) as (out, ranks):
        _until(lambda: len(list(out.glob("ready-*"))) == 2, "the ranks do not start")
        ranks.signal(signal.SIGTERM)
        exits = _by_rank(ranks.wait())
    ensure_equal([exits[rank].status for rank in (0, 1)], [5, 5], "statuses after SIGTERM")


def check_launcher_leaves_no_rank_behind(subject: Subject) -> None:
    """``close`` without ``wait`` ends every rank."""
    with _started(subject, _WAITS) as (out, ranks):
        _until(lambda: len(list(out.glob("ready-*"))) == 2, "the ranks do not start")
        began = time.monotonic()
        ranks.close()
        exits = _by_rank(ranks.wait())
        ensure(time.monotonic() - began < LONG / 2, "ranks went on after close")
    ensure(all(ended.status for ended in exits.values()), "ranks ended by themselves")


CHECKS = (
    Check(check_launcher_is_a_launcher),
    Check(check_launcher_tells_ranks_their_place, process=True),
    Check(check_launcher_ends_the_others_when_one_fails, process=True),
    Check(check_launcher_passes_signals_on, process=True),
    Check(check_launcher_leaves_no_rank_behind, process=True),
)
