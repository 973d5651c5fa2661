"""What all runners share: arguments, synthetic data, FLOP count, clock, and the one JSON line that each prints. Standard
library and numpy only, because every runner lives in its peer's own environment.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

STARTED = time.time()  # as close to the start of the process as Python lets us
WORKLOADS = Path(__file__).resolve().parents[1] / "workloads.json"
Spec = dict[str, Any]


def parse_arguments(peer: str) -> argparse.Namespace:
    """Arguments of every runner; ``--opt`` holds what only one peer understands."""
    parser = argparse.ArgumentParser(description=f"{peer} runner")
    parser.add_argument("--workload", required=True)
    parser.add_argument("--method", default="sft", choices=["sft", "lora", "dpo", "generate"])
    parser.add_argument("--steps", type=int, default=8, help="measured steps, or calls of generate")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recompute", action="store_true", help="full activation recomputation")
    parser.add_argument("--experts", type=int, default=0, help="routed experts instead of the workload's")
    parser.add_argument("--opt", action="append", default=[], metavar="K=V")
    args = parser.parse_args()
    args.opts = dict(option.split("=", 1) for option in args.opt)
    return args


def load_workload(args: argparse.Namespace) -> tuple[Spec, Spec]:
    """(workload, defaults); sets the thread count, so it must run before numpy, torch or paddle are imported."""
    spec = json.loads(WORKLOADS.read_text(encoding="utf-8"))
    workload = dict(spec["workloads"][args.workload], name=args.workload)
    if "model_of" in workload:
        workload["model"] = spec["workloads"][workload["model_of"]]["model"]
    if args.experts:
        workload["model"] = dict(workload["model"], experts=args.experts)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return workload, spec["defaults"]


def make_tokens(num: int, length: int, vocab: int, seed: int) -> Any:
    """int64 [num, length] that a small model can learn: a random bigram map, followed nine times in ten."""
    import numpy as np

    rng = np.random.default_rng(seed)
    follows = rng.permutation(vocab - 3) + 3  # ids 0..2 are padding, begin and end
    out = np.empty((num, length), dtype=np.int64)
    current = rng.integers(3, vocab, size=num)
    for t in range(length):
        out[:, t] = current
        current = np.where(rng.random(num) < 0.9, follows[current - 3], rng.integers(3, vocab, size=num))
    return out


def linear_sizes(model: Spec, rank: int) -> tuple[int, int]:
    """Multiply-adds per token of all linears that a token visits, the head included, and of low-rank updates of them all but
    router and head."""
    h, q, kv = model["hidden"], model["heads"] * model["head_dim"], model["kv_heads"] * model["head_dim"]
    whole = h * model["vocab"]
    update = 0
    for layer in range(model["layers"]):
        whole += h * q + 2 * h * kv + q * h
        update += rank * (2 * (h + q) + 2 * (h + kv))
        if model["arch"] == "moe" and layer >= model["moe_start"]:
            width, shared = model["moe_intermediate"], model["shared_experts"]
            whole += h * model["experts"] + 3 * h * (model["top_k"] + shared) * width
            update += 3 * rank * (model["top_k"] * (h + width) + h + shared * width)
        else:
            whole += 3 * h * model["intermediate"]
            update += 3 * rank * (h + model["intermediate"])
    return int(whole), int(update)


def sequences(workload: Spec, method: str) -> tuple[int, int]:
    """How many one step has, and their length: of pairs, both answers, each behind its prompt."""
    if method == "dpo":
        pairs = workload["dpo"]
        return 2 * pairs["pairs"], pairs["prompt"] + pairs["response"]
    return workload["batch"], workload["seq"]


def count_flops(workload: Spec, method: str, rank: int) -> float:
    """FLOPs of one step from the sizes alone, the same for every peer. One multiply-add is 2; matrix products only;
    attention over the causal half; a backward pass is twice the forward pass, frozen matrices have half of it. DPO has a
    further forward pass, that of the reference; every sequence counts whole, whoever computes a prompt once for both."""
    model = workload["model"]
    (linear, update), width = linear_sizes(model, rank), model["heads"] * model["head_dim"]

    def attention(length: int) -> float:
        return float(model["layers"] * 2 * length * length * width)

    if workload["kind"] == "decode":
        rows, prompt, new = workload["batch"], workload["prompt"], workload["new_tokens"]
        cached = sum(model["layers"] * 4 * (prompt + i) * width for i in range(1, new))
        return float(2 * linear * rows * (prompt + new - 1) + rows * (attention(prompt) + cached))
    rows, length = sequences(workload, method)
    if method == "sft":
        return 6 * linear * rows * length + 3 * rows * attention(length)
    learning = (4 * linear + 6 * update) * rows * length + 3 * rows * attention(length)
    return learning + (2 * linear * rows * length + rows * attention(length) if method == "dpo" else 0)


def tokens_per_step(workload: Spec, method: str) -> int:
    """Tokens that one step processes, or one call of generate makes."""
    if workload["kind"] == "decode":
        return int(workload["batch"] * workload["new_tokens"])
    rows, length = sequences(workload, method)
    return int(rows * length)


def peak_rss_mb() -> float:
    """Peak resident memory of this process, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cpu_seconds() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Clock:
    """``tick`` at the end of every step; the first one measures from ``mark``."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.losses: list[float] = []
        self.first_step_at = 0.0
        self.mark()

    def mark(self) -> None:
        """Start the measurement at this point."""
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()

    def tick(self, loss: float | None = None) -> None:
        """One more step is done."""
        self.wall.append(time.perf_counter() - self._wall)
        self.cpu.append(cpu_seconds() - self._cpu)
        self.first_step_at = self.first_step_at or time.time()
        if loss is not None:
            self.losses.append(loss)
        self.mark()


def emit(peer: str, args: argparse.Namespace, workload: Spec, defaults: Spec, clock: Clock, **facts: Any) -> None:
    """Print the result, the last line of standard output."""
    wall, cpu = clock.wall[args.warmup :], clock.cpu[args.warmup :]
    tokens, median = tokens_per_step(workload, args.method), statistics.median(wall)
    flops = count_flops(workload, args.method, defaults["lora_rank"])
    result = {
        "peer": peer,
        "workload": workload["name"],
        "method": args.method,
        "threads": args.threads,
        "steps": len(wall),
        "tokens_per_step": tokens,
        "tokens_per_s": round(tokens / median, 1),
        "step_s": round(median, 4),
        "step_s_best": round(min(wall), 4),
        "cpu_s_per_step": round(statistics.median(cpu), 4),
        "gflops": round(flops / median / 1e9, 2),
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "losses": [round(loss, 4) for loss in clock.losses],
        "first_step_s": round(clock.first_step_at - STARTED, 2),
        "step_s_all": [round(seconds, 4) for seconds in clock.wall],
        **facts,
    }
    sys.stdout.flush()
    print(json.dumps(result), flush=True)
