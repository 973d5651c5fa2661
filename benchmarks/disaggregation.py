"""The disaggregated server, measured and simulated.

    python -m benchmarks.disaggregation calibrate [--size …]      what real processes take: benchmarks/service_times.json
    python -m benchmarks.disaggregation simulate [--trace FILE]   fixed splits against changing roles, on traces
    python -m benchmarks.disaggregation switches [--switches 60 --kills 6]

``calibrate`` asks one process for prompts and one that decodes, with one thread each, and fits straight lines to times.
``simulate`` runs the policies and the controller of the server over those times: every fixed split of the processes, and
switching from every split; targets are four times what the longest prompts of the traces take, and one and a half times a
full step. ``switches`` changes roles and kills processes under load, and compares every completion with that of one process;
every fourth keeps to a grammar.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe

HERE = Path(__file__).parent
HELPERS = HERE.parent / "tests" / "helpers"
TIMES = HERE / "service_times.json"
SIZE = (
    "hidden_size=512,intermediate_size=1536,num_hidden_layers=8,num_attention_heads=8,num_key_value_heads=2,head_dim=64,"
    "max_position_embeddings=8192"
)
SMALL = (
    "hidden_size=32,intermediate_size=48,num_attention_heads=2,num_key_value_heads=1,head_dim=16,initializer_range=0.3,"
    "max_position_embeddings=4096"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    calibrating = parts.add_parser("calibrate")
    calibrating.add_argument("--size", default=SIZE)
    calibrating.add_argument("--out", type=Path, default=TIMES)
    simulating = parts.add_parser("simulate")
    simulating.add_argument("--times", type=Path, default=TIMES)
    simulating.add_argument("--trace", type=Path, action="append", default=[], help="recorded trace (JSON lines)")
    simulating.add_argument("--processes", type=int, default=4)
    simulating.add_argument("--rows", type=int, default=8)
    simulating.add_argument("--load", type=float, default=0.6)
    simulating.add_argument("--seeds", type=int, default=3)
    simulating.add_argument("--json", action="store_true")
    switching = parts.add_parser("switches")
    switching.add_argument("--switches", type=int, default=60)
    switching.add_argument("--kills", type=int, default=6)
    switching.add_argument("--seed", type=int, default=0)
    switching.add_argument("--out", type=Path, help="write the counts")
    args = parser.parse_args()
    return {"calibrate": calibrate, "simulate": simulate, "switches": switches}[args.part](args)


def new_model(home: Path, size: str) -> Path:
    """A model with random weights, and a tokenizer trained on the demo's tasks."""
    from erniecore_demo import tasks
    from erniecore_ernie45.templating import builtin_source
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    rows = list(tasks.rows("train", 400, families=["copy", "identity"]))
    (home / "tokenizer").mkdir()
    train([message["content"] for row in rows for message in row["messages"]], 330).save(home / "tokenizer")
    (home / "tokenizer" / "chat_template.jinja").write_text(builtin_source("ernie45"), encoding="utf-8")
    init_model("ernie45", size, home / "tokenizer", home / "model", seed_value=1)
    return home / "model"


def calibrate(args: argparse.Namespace) -> int:
    """Measure real processes; see ``ServiceTimes``."""
    from erniecore_disaggregated.config import DisaggregatedConfig
    from erniecore_disaggregated.router import Router

    sys.path.insert(0, str(HELPERS))
    with tempfile.TemporaryDirectory() as home:
        settings = DisaggregatedConfig(prefill=1, decode=1, rows=8, threads=1, prefix_bytes=0)
        router = Router(settings, new_model(Path(home), args.size))
        router.start()
        try:
            ask_once(router, 64, 8)
            prompts = {n: min(ask_once(router, n, 1)[0] for _ in range(3)) for n in (64, 512, 2048)}
            steps = {rows: min(step_seconds(router, rows) for _ in range(3)) for rows in (1, 4, 8)}
            base, row = line(steps)
            gaps = {n: min(ask_once(router, n, 2)[1] for _ in range(3)) - steps[1] for n in (64, 512, 2048)}
        finally:
            router.stop(drain=False)
    prefill, handoff = line(prompts), line(gaps)
    found = {
        "prefill_base": prefill[0], "prefill_token": prefill[1], "handoff_base": handoff[0],
        "handoff_token": handoff[1], "step_base": base, "step_row": row,
    }  # fmt: skip
    measured = {"prompts": prompts, "steps": steps, "handoffs": gaps}
    told = {
        "times": found,
        "measured": measured,
        "model": args.size,
        "machine": platform.processor() or platform.machine(),
    }
    args.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0


def ask_once(router: Any, prompt: int, new: int) -> tuple[float, float]:
    """Seconds to the first token, and from there to the last one."""
    from engines import Caller
    from erniecore_generation.engine.requests import GenerationRequest, Tokens
    from erniecore_generation.sampling import Sampling

    class Timed(Caller):  # type: ignore[misc]
        def __call__(self, event: Any) -> None:
            if isinstance(event, Tokens):
                times.append(time.perf_counter())
            super().__call__(event)

    times: list[float] = []
    ids = tuple(np.random.default_rng(prompt).integers(4, 300, prompt).tolist())
    caller, began = Timed(), time.perf_counter()
    router.submit(GenerationRequest(ids, Sampling(), new), caller)
    assert caller.end.reason == "length"
    return times[0] - began, times[-1] - times[0]


def step_seconds(router: Any, rows: int, new: int = 96) -> float:
    """Seconds of a step with so many rows: the middle of a completion among others that are as long."""
    from engines import Caller
    from erniecore_generation.engine.requests import GenerationRequest, Tokens
    from erniecore_generation.sampling import Sampling

    times: list[float] = []

    class Timed(Caller):  # type: ignore[misc]
        def __call__(self, event: Any) -> None:
            if isinstance(event, Tokens):
                times.append(time.perf_counter())
            super().__call__(event)

    callers = [Caller() for _ in range(rows - 1)] + [Timed()]
    for number, caller in enumerate(callers):
        router.submit(GenerationRequest((5 + number,) * 24, Sampling(), new), caller)
    for caller in callers:
        assert caller.end.reason == "length"
    return float(np.median(np.diff(times[new // 3 : -new // 3])))


def line(measured: dict[int, float]) -> tuple[float, float]:
    """Least squares: (base, slope), neither below zero."""
    x = np.array(list(measured), float)
    slope, base = np.polyfit(x, np.array(list(measured.values())), 1)
    if base < 0:
        slope, base = float(np.mean(np.array(list(measured.values())) / x)), 0.0
    return max(float(base), 0.0), max(float(slope), 0.0)


def simulate(args: argparse.Namespace) -> int:
    """Compare fixed splits with changing roles."""
    from erniecore_disaggregated.controller import Targets
    from erniecore_disaggregated.simulation import Score, ServiceTimes, compare, scores_json
    from erniecore_disaggregated.traces import TRACES, made_up, read_trace

    times = ServiceTimes(**json.loads(args.times.read_text())["times"])
    longest = times.prefill_base + 3000 * times.prefill_token
    targets = Targets(4 * longest, 1.5 * (times.step_base + times.step_row * args.rows))
    print(
        f"targets: first token {targets.ttft:.3g} s, each further one {targets.tpot:.3g} s; {args.processes} processes"
    )
    report: dict[str, Any] = {}
    traces: dict[str, list[Any]] = {file.name: [read_trace(file)] for file in args.trace}
    for name in () if args.trace else TRACES:
        options = {"rows": args.rows, "load": args.load}
        traces[name] = [made_up(name, times, args.processes, seed=seed, **options) for seed in range(args.seeds)]
    for name, runs in traces.items():
        scores: dict[str, list[Score]] = {}
        for trace in runs:
            for entry in compare(trace, times, args.processes, targets, args.rows):
                scores.setdefault(entry.name, []).append(entry)
        report[name] = show(name, sum(map(len, runs)), scores)
        report[name]["runs"] = {split: scores_json(entries) for split, entries in scores.items()}
    if args.json:
        print(json.dumps(report))
    return 0


def show(name: str, requests: int, scores: dict[str, list[Any]]) -> dict[str, Any]:
    """Print one trace: shares of requests that met their targets, means over the runs."""
    means = {split: float(np.mean([entry.both for entry in entries])) for split, entries in scores.items()}
    fixed = {split: mean for split, mean in means.items() if "switching" not in split}
    moving = {split: mean for split, mean in means.items() if "switching" in split}
    best, worst = max(fixed, key=fixed.__getitem__), min(moving, key=moving.__getitem__)
    changes = np.mean([entry.switches for split in moving for entry in scores[split]])
    told = ", ".join(f"{split}: {mean:.1%}" for split, mean in fixed.items())
    verdict = "switching meets more" if moving[worst] > fixed[best] else "the fixed split meets more"
    print(f"{name} ({requests} requests): fixed {told}")
    print(
        f"  switching: {moving[worst]:.1%} from the worst start, {max(moving.values()):.1%} from the best, {changes:.0f} changes"
    )
    print(f"  {verdict}: {moving[worst] - fixed[best]:+.1%} against {best}")
    return {
        "best_fixed": fixed[best],
        "split": best,
        "switching_worst": moving[worst],
        "switching": max(moving.values()),
    }


def switches(args: argparse.Namespace) -> int:
    """Change roles and kill processes under load; the exit code is 1 where a completion differs."""
    sys.path.insert(0, str(HELPERS))
    from clusters import storm
    from erniecore_disaggregated.config import DisaggregatedConfig
    from erniecore_disaggregated.router import Router
    from erniecore_openai.config import OpenAIConfig
    from erniecore_openai.serving import read_model

    with tempfile.TemporaryDirectory() as home:
        directory = new_model(Path(home), SMALL)
        settings = DisaggregatedConfig(prefill=2, decode=2, rows=4, threads=1, restarts=1000, retries=5)
        router = Router(settings, directory)
        router.start()
        model = read_model(OpenAIConfig(rows=8, prefix_bytes=0), directory)
        model.engine.start()
        began = time.monotonic()
        found = storm(router, model.engine, model.vocabulary, switches=args.switches, kills=args.kills, seed=args.seed)
        router.stop()
        model.engine.stop()
        seconds = round(time.monotonic() - began)
    print(f"{found.switches} changes of role, {found.kills} processes killed, {seconds} s")
    print(
        f"{found.requests} completions: {found.equal} equal to one process, {found.errors} explicit errors, {found.wrong} wrong"
    )
    print(f"begun again: {router.tally.retried}; stale messages dropped: {router.tally.stale}")
    if args.out is not None:
        from processes import commit

        told = counts(found) | {"seconds": seconds, "retried": router.tally.retried, "stale": router.tally.stale}
        told |= {"commit": commit(), "machine": describe(), "load_average": round(os.getloadavg()[0], 1)}
        args.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0 if found.equal == found.requests else 1


def counts(found: Any) -> dict[str, Any]:
    """What a ``Storm`` did, as ``docs/data`` has it."""
    together = f"completions while {found.switches} roles changed and {found.kills} processes were killed"
    attempts = {"area": together, "attempts": found.requests, "failures": found.errors + found.wrong}
    return {"suite": "switches", "date": f"{date.today()}", "areas": [attempts]}


if __name__ == "__main__":
    sys.exit(main())
