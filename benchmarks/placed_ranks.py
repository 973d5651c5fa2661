"""Ranks at the places that `ernie plan` chooses, beside the order in which machines are listed: planned and measured seconds of a
step. Four machines of one rank in two racks; what goes from rack to rack is slow. The list takes racks in turns, as a scheduler
may give machines out, so that tensor ranks are in different racks there.

Machines are network namespaces, racks are bridges, and the link between them has a token bucket of the kernel (`tc`); needs root.
Everything else is the real thing: `ernie plan --cluster` says the places, `ernie run --nodes 4` runs with them.

    python -m benchmarks.placed_ranks [--mbit 80] [--steps 12]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

#: rack of each machine, in the order in which they are listed
RACKS = (0, 1, 0, 1)
LAYOUT = ("parallel.tensor=2", "parallel.data=2")
PORT, BURST = 29517, 32 << 10
SECRET = {"ERNIECORE_SECRET": "machines of one benchmark"}


def ip(*words: str) -> None:
    """Raises ``CalledProcessError`` where the machine does not allow it."""
    subprocess.run(words, check=True, capture_output=True, text=True)


@contextmanager
def machines(mbit: float) -> Iterator[list[str]]:
    """Namespaces, one per machine; machine i has the address 10.214.9.(i + 1)."""
    tag = f"pl{os.getpid() % 10000}"
    names, racks = [f"{tag}m{i}" for i in range(len(RACKS))], [f"{tag}r{i}" for i in range(2)]
    try:
        for name in (*names, *racks):
            ip("ip", "netns", "add", name)
            ip("ip", "-n", name, "link", "set", "lo", "up")
        for rack in racks:
            ip("ip", "-n", rack, "link", "add", "name", "switch", "type", "bridge")
            ip("ip", "-n", rack, "link", "set", "switch", "up")
        ends = [(name, "eth0", racks[rack], f"to{i}") for i, (name, rack) in enumerate(zip(names, RACKS, strict=True))]
        for one, device, other, port in (*ends, (racks[0], "wire", racks[1], "wire")):
            ip("ip", "-n", one, "link", "add", device, "type", "veth", "peer", "name", port, "netns", other)
            ip("ip", "-n", other, "link", "set", port, "master", "switch", "up")
            ip("ip", "-n", one, "link", "set", device, "up")
        ip("ip", "-n", racks[0], "link", "set", "wire", "master", "switch")
        for i, name in enumerate(names):
            ip("ip", "-n", name, "addr", "add", f"10.214.9.{i + 1}/24", "dev", "eth0")
        rate = ["tbf", "rate", f"{mbit * 1e6:.0f}bit", "burst", str(BURST), "latency", "1000ms"]
        for rack in racks:
            ip("ip", "netns", "exec", rack, "tc", "qdisc", "add", "dev", "wire", "root", *rate)
        yield names
    finally:
        for name in (*names, *racks):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def ernie(*words: str, cwd: Path) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "erniecore", *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ernie {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


def prepare(home: Path) -> list[str]:
    """A model of 5 million parameters, rows, and the words of a run."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Add {a} and {b}."},
                {"role": "assistant", "content": f"{a + b}. " * 60},
            ]
        }
        for a in range(20)
        for b in range(20)
    ]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ernie("tokenizer", "train", "rows.jsonl", "--vocab-size", "330", "--out", "tokenizer", cwd=home)
    size = "hidden_size=256,intermediate_size=768,num_hidden_layers=6,num_attention_heads=4,num_key_value_heads=4,head_dim=64"
    ernie("model", "init", "--model", "ernie45", "--size", size, "--tokenizer", "tokenizer", "--out", "model", cwd=home)
    words = ["--model", "model", "--method", "sft", "--parallel", "hybrid", *LAYOUT, "data.train=rows.jsonl"]
    return [*words, "data.max_seq_len=256", "data.packing=greedy", "train.batch_size=1", "log.every=1"]


def cluster_file(home: Path, mbit: float) -> Path:
    """Two ranks at a time use the link between the racks. What the processor computes was not measured: it is the same in both
    orders."""
    slow, fast = mbit / 8000 / 2, 1.0
    links = [[fast if one == other else slow for other in RACKS] for one in RACKS]
    row = {"count": len(RACKS), "accelerators": 1, "accelerator": "process", "memory": 4, "measured_tflops": 0.02}
    path = home / "cluster.yaml"
    path.write_text(yaml.safe_dump({"machines": [row], "links": links}))
    return path


def measured(home: Path, names: list[str], words: list[str], out: str, steps: int) -> float:
    """Median seconds of a step, without the first two."""
    run = [
        "run",
        *words,
        f"train.max_steps={steps}",
        "checkpoint.export=false",
        f"run.out={out}",
        "--nodes",
        str(len(names)),
    ]
    environ = {**os.environ, **SECRET, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    processes = []
    for rank, name in enumerate(names):
        more = ["--node-rank", str(rank), "--master", f"10.214.9.1:{PORT}"]
        front = ["ip", "netns", "exec", name, sys.executable, "-m", "erniecore"]
        own = {**environ, "ERNIECORE_NODE": f"machine-{rank}"}
        processes.append(
            subprocess.Popen(
                [*front, *run, *more], cwd=home, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    texts = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("\n".join(texts))
    events = [json.loads(line) for line in (home / out / "events.jsonl").read_text().splitlines()]
    return statistics.median([event["seconds"] for event in events if event["event"] == "step"][2:])


def main() -> int:
    """Plan, run both ways, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--mbit", type=float, default=80.0, help="Mbit/s between the racks")
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, machines(given.mbit) as names:
        home = Path(directory)
        words = prepare(home)
        cluster = str(cluster_file(home, given.mbit))
        found: dict[str, Any] = json.loads(ernie("plan", *words, "--cluster", cluster, "--json", cwd=home))["given"]
        places = [word for word in found["settings"].split() if word.startswith(("parallel.order", "parallel.ranks"))]
        print(f"places: {' '.join(places) or 'in the order of the file'}", flush=True)
        ways = (("as listed", [], found["placement"]["file_order"]), ("placed", places, found["placement"]["seconds"]))
        print("| ranks | planned, s | measured, s |\n|---|---|---|")
        times = []
        for number, (name, more, planned) in enumerate(ways):
            times.append((planned, measured(home, names, [*words, *more], f"run{number}", given.steps)))
            print(f"| {name} | {planned:.2f} | {times[-1][1]:.2f} |", flush=True)
        (before, slow), (after, fast) = times
        print(f"| times faster | {before / after:.2f} | {slow / fast:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
