"""``python -m benchmarks.kill_loop``: SIGKILLs of random ranks at random moments of a run that users' processes make, with
``ernie run --restarts``; counts unloadable checkpoints and hangs, compares the last weights and moments with those of
an undisturbed run, and measures how long it takes from a kill to the next step.

With ``--forked`` ranks are forks of a process that has imported paddle: many more kills in the same time, without the
starter of the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HELPERS = Path(__file__).parents[1] / "tests" / "helpers"
sys.path.insert(0, str(HELPERS))

from kills import Report, fingerprint, kill_loop  # noqa: E402 - lies among the helpers of the tests

LAYOUTS = {
    "alone": (1, ()),
    "data2": (2, ("parallel.data=2",)),
    "tensor2": (2, ("parallel.tensor=2",)),
    "sharded": (2, ("parallel.sharding=2",)),
    "stage2": (2, ("parallel.sharding=2", "parallel.sharding_stage=2")),
}
STEPS, SAVE_EVERY, LONGEST = 400, 3, 10


class Supervised:
    """``ernie run --restarts``; its ranks are its children."""

    def __init__(self, words: Sequence[str], place: Path) -> None:
        self.words, self.place = words, place
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "erniecore", "run", *self.words, "--restarts", "100000"]
        with (self.place / "console.txt").open("ab") as console:
            self._process = subprocess.Popen(command, stdout=console, stderr=console)

    def ranks(self) -> list[int]:
        assert self._process is not None
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []
        return [int(child) for child in children if _lives(int(child))]

    def collected(self, before: Sequence[int], limit: float) -> bool:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # so that nothing begins while what is there is looked at
        end = time.monotonic() + limit
        while any(_lives(pid) for pid in before) and time.monotonic() < end:
            time.sleep(0.005)
        return not any(_lives(pid) for pid in before)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def finished(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait()


def _lives(pid: int) -> bool:
    """Whether a process is there, and more than an entry that its parent has not looked at."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def prepared(place: Path) -> list[str]:
    """A tiny model and data; the words of a run."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"the quick brown fox jumps {a} plus {b}"},
                {"role": "assistant", "content": f"{a + b}"},
            ]
        }
        for a in range(20)
        for b in range(20)
    ]
    data = place / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    size = (
        "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=8"
    )
    ernie = [sys.executable, "-m", "erniecore"]
    tokenizer, base = str(place / "tokenizer"), str(place / "base")
    quiet = {"stdout": subprocess.DEVNULL, "check": True}
    subprocess.run([*ernie, "tokenizer", "train", str(data), "--vocab-size", "320", "--out", tokenizer], **quiet)
    make = ["model", "init", "--model", "ernie45", "--size", size, "--tokenizer", tokenizer, "--out", base]
    subprocess.run([*ernie, *make], **quiet)
    return [
        "model.name=ernie45",
        f"model.path={base}",
        "method.name=sft",
        f"data.train={data}",
        "data.max_seq_len=64",
        "train.batch_size=2",
        "train.learning_rate=5e-4",
        f"train.max_steps={STEPS}",
        f"checkpoint.every={SAVE_EVERY}",
        "log.report=false",
    ]


def killed(words: Sequence[str], place: Path, name: str, kills: int, seed: int) -> Report:
    """One layout: an undisturbed run, and runs with kills until there are enough."""
    _, layout = LAYOUTS[name]
    words = [*words, *(("parallel.name=hybrid", *layout) if layout else ())]
    straight, total = place / f"{name}-straight", Report(equal=True)
    subprocess.run(
        [sys.executable, "-m", "erniecore", "run", *words, f"run.out={straight}"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for attempt in range(2 * kills):
        if total.kills >= kills or total.hangs:
            break
        out = place / f"{name}-{attempt}"
        launch = Supervised([*words, f"run.out={out}"], place)
        report = kill_loop(launch, out, kills - total.kills, seed=seed + attempt, longest=LONGEST)
        report.equal = not report.hangs and fingerprint(out, STEPS) == fingerprint(straight, STEPS)
        total.add(report)
    return total


def forked(words: Sequence[str], place: Path, name: str, kills: int, seed: int) -> str:
    """The same by ``tests/helpers/forked.py``."""
    count, layout = LAYOUTS[name]
    case = {
        "words": [*words, *(("parallel.name=hybrid", *layout) if layout else ())],
        "out": str(place / name),
        "straight": str(place / f"{name}-straight"),
        "count": count,
        "kills": kills,
        "seed": seed,
        "longest": LONGEST,
        "steps": STEPS,
    }
    command = [sys.executable, str(HELPERS / "forked.py"), json.dumps({"cases": [case]})]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layouts", nargs="*", default=list(LAYOUTS), help=f"some of: {', '.join(LAYOUTS)}")
    parser.add_argument("--kills", type=int, default=50, help="per layout")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--forked", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="kills-") as directory:
        words = prepared(Path(directory))
        for name in args.layouts:
            if args.forked:
                print(name, forked(words, Path(directory), name, args.kills, args.seed), flush=True)
            else:
                report = killed(words, Path(directory), name, args.kills, args.seed)
                print(name, json.dumps(report.summary()), flush=True)


if __name__ == "__main__":
    main()
