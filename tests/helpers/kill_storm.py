"""``make test-kills``: some hundred SIGKILLs over every phase, target and layout (``kill_cases.py``), and a summary as JSON: how
many kills of whom in which phase, and what failed. The same seed plans the same kills; when each hits is up to the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from erniecore_system.durable import replace_file
from kill_cases import LAYOUTS, PHASES, TARGETS, Kill, Storm
from processes import commit
from small_model import make_home, write_rows
from warm import Warm

#: kills of one chain, and how often kills that did not happen are planned again
CHAIN, ROUNDS = 4, 6


def cells(layout: str) -> list[Kill]:
    """What can be killed when: workers live while the data is tokenized."""
    targets = ("all",) if layout == "one process" else ("rank", "launcher", "all")
    kills = [*(Kill(phase, target) for phase in PHASES for target in targets), Kill("tokenizing", "workers")]
    if layout != "one process":  # a process that is stopped before it follows another is on its own
        kills += [Kill(phase, "stopped") for phase in ("load", "first step", "steps", "checkpoint", "evaluation")]
    return kills


def planned(count: int, rng: random.Random) -> list[tuple[str, list[Kill]]]:
    """Chains with ``count`` kills, all cells about equally often; those of one process, which has fewer, twice as often."""
    everything = [(layout, kill) for layout in (*LAYOUTS, "one process") for kill in cells(layout)]
    chosen: list[tuple[str, Kill]] = []
    while len(chosen) < count:
        chosen += rng.sample(everything, min(len(everything), count - len(chosen)))
    return chained(chosen, rng, CHAIN)


def chained(kills: Iterable[tuple[str, Kill]], rng: random.Random, size: int) -> list[tuple[str, list[Kill]]]:
    """Chains of ``size`` kills: what happens once at the beginning comes first, the end comes last."""
    order = {"tokenizing": -1, "export": 1}
    chains = []
    for layout in LAYOUTS:
        mine = [kill for where, kill in kills if where == layout]
        rng.shuffle(mine)
        for at in range(0, len(mine), size):
            chains.append((layout, sorted(mine[at : at + size], key=lambda kill: order.get(kill.phase, 0))))
    rng.shuffle(chains)
    return chains


def run(storm: Storm, jobs: int, label: str, told: Callable[[], None]) -> None:
    """All chains, ``jobs`` of them at a time; ``told`` is called after each."""
    rng = random.Random(storm.seed)
    again = [(one["layout"], [Kill(*kill.split("/")) for kill in one["kills"]]) for one in storm.before["failures"]]
    count = storm.wanted - storm.before["kills"]
    chains, number = [*again, *planned(count - sum(len(kills) for _, kills in again), rng)], 0
    for layout in LAYOUTS:
        storm.undisturbed(layout)
    for _ in range(ROUNDS):
        missed: list[tuple[str, Kill]] = []

        def one(job: tuple[int, tuple[str, list[Kill]]], missed: list[tuple[str, Kill]] = missed) -> None:
            at, (layout, kills) = job
            missed += [(layout, kill) for kill in storm.chain(at, layout, kills, label)]
            done, wrong = sum(storm.kills.values()), len(storm.failures)
            print(f"{time.strftime('%H:%M:%S')} chain {at}, {layout}: {done} kills, {wrong} failures", flush=True)
            told()

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, enumerate(chains, number)))
        number += len(chains)
        if sum(storm.kills.values()) >= count or not missed:
            return
        chains = chained(missed, rng, 2)


def summary(storm: Storm, seconds: float) -> dict[str, Any]:
    """As ``docs/promises_page.py`` wants it, by phase and target; and what was run where."""
    wrong = Counter((one["phase"], one["target"]) for one in storm.failures)
    done = Counter((phase, target) for phase, target, _ in storm.kills.elements())
    done.update({tuple(area["area"].split(": ")): area["attempts"] for area in storm.before["areas"]})
    areas = [
        {"area": f"{phase}: {target}", "attempts": done[phase, target], "failures": wrong[phase, target]}
        for phase in (*PHASES, "")
        for target in (*TARGETS, "")
        if done[phase, target] or wrong[phase, target]
    ]
    layouts = Counter(where for *_, where in storm.kills.elements())
    now = {
        "commit": commit(),
        "seed": storm.seed,
        "kills": sum(storm.kills.values()),
        "starts_in_fresh_processes": storm.fresh,
        "shared_memory_looked_at": private_memory(),
        "seconds": round(seconds),
        "python": platform.python_version(),
        "failures": storm.failures,
    }
    return {
        "suite": "kills",
        "date": time.strftime("%Y-%m-%d"),
        "commit": ", ".join(dict.fromkeys(one["commit"] for one in [*storm.before["runs"], now])),
        "areas": areas,
        "layouts": {name: layouts[name] + storm.before["layouts"].get(name, 0) for name in LAYOUTS},
        "kills": now["kills"] + storm.before["kills"],
        "failures": storm.failures,
        "runs": [*storm.before["runs"], now],
    }


def read_before(file: Path | None) -> dict[str, Any]:
    """What an earlier run has counted, without the chains of kills that failed: they are repeated. The record of that run
    keeps them."""
    if file is None:
        return {"kills": 0, "failures": [], "areas": [], "layouts": {}, "runs": []}
    before: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    areas = {area["area"]: area for area in before["areas"]}
    for failure in before["failures"]:
        for kill in failure["kills"]:
            areas[kill.replace("/", ": ")]["attempts"] -= 1
            before["layouts"][failure["layout"]] -= 1
            before["kills"] -= 1
    return before


def private_memory() -> bool:
    """Whether ``/dev/shm`` is this process's and its child processes' alone, so that what is left there is theirs."""
    return os.environ.get("KILLS_PRIVATE_MEMORY") == "1"


def alone_with_memory() -> None:
    """Begin again with a ``/dev/shm`` of our own, where this user may mount one."""
    mount = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    if not private_memory() and not subprocess.run([*mount, "true"], stderr=subprocess.DEVNULL).returncode:
        os.environ["KILLS_PRIVATE_MEMORY"] = "1"
        os.execvp(mount[0], [*mount, sys.executable, *sys.argv])


def main() -> int:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="chains at a time")
    parser.add_argument(
        "--go-on", type=Path, help="summary of a run that was stopped, or failed: the rest, and what failed"
    )
    parser.add_argument("--out", type=Path, help="where the summary is written")
    options = parser.parse_args()
    alone_with_memory()
    started, warm = time.monotonic(), Warm()

    def write() -> None:
        if options.out is not None:
            text = json.dumps(summary(storm, time.monotonic() - started), indent=1) + "\n"
            replace_file(options.out, text.encode())

    with tempfile.TemporaryDirectory() as name:
        home = make_home(Path(name).resolve())
        write_rows(home / "train.jsonl", 600, 1)
        storm = Storm(home, warm, options.seed, options.kills, before=read_before(options.go_on))
        try:
            run(storm, options.jobs, f"seed{options.seed}", write)
        finally:
            warm.close()
    if private_memory() and (left := os.listdir("/dev/shm")):
        storm.failures.append({"phase": "", "target": "", "what": f"left in /dev/shm: {left}"})
    write()
    print(f"{sum(storm.kills.values())} kills, {len(storm.failures)} failures", *storm.failures, sep="\n")
    return 1 if storm.failures else 0


if __name__ == "__main__":
    sys.exit(main())
