"""What messages beside the computation are worth: two processes on a slow link of the kernel (a network namespace and `tc`, as in
``wan_links.py``), each case with and without, in turns.

    python -m benchmarks.overlap [--rate 400] [--rounds 2] [--cases data ring …]

Prints the median step, the most bytes that tensors held on rank 0, and whether the losses are the same to the last bit. Needs
root and iproute2; ``--rate 0`` does without a link: both processes on this machine's loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from erniecore_wan.links import LinkQuality
from erniecore_wan.namespaces import NamespaceLink

from benchmarks.layouts import prepared
from erniecore.api.launcher import Cluster, free_port, parent_variables
from erniecore.api.testing import paddle_variables

STEPS, LENGTH, LONG = 5, 512, 2048
#: 24 M parameters: several messages of gradients
SIZE = (
    "hidden_size=512,intermediate_size=1536,num_hidden_layers=8,num_attention_heads=8,num_key_value_heads=2,head_dim=64"
)
#: rank's side: the run, and the most bytes that tensors held
_RANK = """
import json, sys
from erniecore.api.launcher import follow_parent
follow_parent()
import erniecore
erniecore.run(overrides=sys.argv[1:], console="none")
from paddle.base import core
print(json.dumps(int(core.host_memory_stat_peak_value("Allocated", 0))))
"""
_LATE, _EARLY = {"parallel.overlap_gradients": "false"}, {"parallel.overlap_gradients": "true"}
_WHOLE = {"parallel.sharding": 2, "parallel.sharding_stage": 3}
_RING = {"parallel.context": 2, "data.max_seq_len": LONG, "train.recompute": "none"}
#: name -> (settings of both, without, with)
CASES: Mapping[str, tuple[Mapping[str, object], Mapping[str, object], Mapping[str, object]]] = {
    "data": ({"parallel.data": 2}, _LATE, _EARLY),
    "stage-1": ({"parallel.sharding": 2}, _LATE, _EARLY),
    "stage-2": ({"parallel.sharding": 2, "parallel.sharding_stage": 2}, _LATE, _EARLY),
    "stage-3": (_WHOLE, {**_LATE, "parallel.prefetch": 0}, {**_EARLY, "parallel.prefetch": 0}),
    "prefetch": (_WHOLE, {**_EARLY, "parallel.prefetch": 0}, {**_EARLY, "parallel.prefetch": 1}),
    "ring": (_RING, {"parallel.context_attention": "gather"}, {"parallel.context_attention": "ring"}),
}


@dataclass
class Found:
    """Of one way: seconds of steps of all rounds, bytes, and losses of the last round."""

    seconds: list[float] = field(default_factory=list)
    memory: int = 0
    losses: Sequence[float] = ()


@contextmanager
def machines(rate: float) -> Iterator[tuple[str, list[str], list[dict[str, str]]]]:
    """(address of rank 0, what rank 1's command begins with, variables of both)."""
    if not rate:
        yield "127.0.0.1", [], [{}, {}]
        return
    with NamespaceLink(LinkQuality(rate=rate * 1e6 / 8)) as link:
        devices = [device(prefix, address) for prefix, address in (([], link.here), (link.command(), link.there))]
        yield link.here, link.command(), [{"GLOO_SOCKET_IFNAME": name} for name in devices]


def device(prefix: Sequence[str], address: str) -> str:
    """The name of the network device with an address."""
    told = subprocess.run([*prefix, "ip", "-json", "addr"], capture_output=True, text=True, check=True).stdout
    return next(
        str(one["ifname"]) for one in json.loads(told) if any(a.get("local") == address for a in one["addr_info"])
    )


def run(place: Path, words: Sequence[str], host: str, prefix: list[str], variables: list[dict[str, str]]) -> int:
    """One run of two processes; the most bytes of tensors on rank 0."""
    master, processes = f"{host}:{free_port(host)}", []
    for rank in range(2):
        cluster = Cluster(rank=rank, world_size=2, local_rank=0, master=master)
        environ = {**os.environ, **paddle_variables(cluster), **parent_variables(), **variables[rank]}
        command = [*(prefix if rank else []), sys.executable, "-c", _RANK, *words]
        processes.append(
            subprocess.Popen(command, env={**environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True)
        )
    told = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"a run failed: {words}")
    return int(told[0].splitlines()[-1])


def words_of(place: Path, out: Path, settings: Mapping[str, object]) -> list[str]:
    """Settings of a run."""
    own = {
        "model.name": "ernie45",
        "model.path": place / "model",
        "method.name": "sft",
        "data.train": place / "train.jsonl",
        "data.max_seq_len": LENGTH,
        "data.packing": "greedy",
        "train.batch_size": 1,
        "train.max_steps": STEPS,
        "train.learning_rate": 3e-4,
        "checkpoint.export": "false",
        "checkpoint.every": 1000,
        "log.report": "false",
        "run.out": out,
        "parallel.name": "hybrid",
        **settings,
    }
    return [f"{key}={value}" for key, value in own.items()]


def measured(names: Sequence[str], rate: float, rounds: int) -> Iterator[str]:
    """Rows of the table."""
    with tempfile.TemporaryDirectory(prefix="overlap-") as directory, machines(rate) as (host, prefix, variables):
        place = Path(directory)
        prepared(place, {"model": ("ernie45", SIZE)})
        for name in names:
            shared, *ways = CASES[name]
            found = [Found(), Found()]
            for turn in range(rounds):
                for way, one in zip(ways, found, strict=True):
                    out = place / f"{name}-{turn}-{ways.index(way)}"
                    memory = run(place, words_of(place, out, {**shared, **way}), host, prefix, variables)
                    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines() if line]
                    steps = [event for event in events if event["event"] == "step"]
                    one.seconds += [step["seconds"] for step in steps[2:]]  # the first one learns the order
                    one.losses, one.memory = [step["loss"] for step in steps], max(one.memory, memory)
            before, after = (median(one.seconds) for one in found)
            same = "yes" if found[0].losses == found[1].losses else f"{difference(found):.0e} apart"
            peaks = " | ".join(f"{one.memory / 2**20:.0f}" for one in found)
            yield f"| {name} | {before:.2f} | {after:.2f} | {before / after:.2f} | {peaks} | {same} |"


def difference(found: Sequence[Found]) -> float:
    """The largest relative one of two runs' losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(found[0].losses, found[1].losses, strict=True))


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rate", type=float, default=400.0, help="Mbit/s in each direction; 0: no link")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    given = parser.parse_args()
    print("| case | step without, s | with, s | times faster | peak without, MiB | with | same losses |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for row in measured(given.cases, given.rate, given.rounds):
        print(row, flush=True)


if __name__ == "__main__":
    main()
