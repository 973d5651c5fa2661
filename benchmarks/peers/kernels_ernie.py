"""One workload with kernels and without, in turns in one process; and without one kernel at a time. Prints one JSON line."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from common import load_workload, make_tokens, parse_arguments
from run_ernie import build_model, make_batches, open_device

Step = Callable[[], None]


def decoding(workload: dict[str, Any], defaults: dict[str, Any]) -> tuple[Step, int]:
    """Greedy decoding of one batch, and how many tokens it makes."""
    from erniecore_generation.generate import generate

    model = build_model(workload["model"], defaults["seed"])
    model.eval()
    prompt = make_tokens(workload["batch"], workload["prompt"], workload["model"]["vocab"], defaults["seed"])
    size = workload["new_tokens"]
    return lambda: (generate(model, prompt, max_new_tokens=size), None)[1], workload["batch"] * size


def training(workload: dict[str, Any], defaults: dict[str, Any]) -> tuple[Step, int]:
    """One step of supervised fine-tuning, and how many tokens it learns from."""
    from erniecore_sft.objective import SftObjective

    from erniecore.config.adamw import AdamWConfig
    from erniecore.config.core import TrainSection
    from erniecore.engine import metrics
    from erniecore.engine.optimizers.adamw import AdamW
    from erniecore.engine.optimizers.parameters import gradient_square_sum, trained_parameters
    from erniecore.engine.step import forward_backward
    from erniecore.engine.training import guards

    model = build_model(workload["model"], defaults["seed"])
    model.train()
    objective, optimizer = (
        SftObjective(model),
        AdamW(trained_parameters(model.named_parameters(), TrainSection()), AdamWConfig()),
    )
    (batch,) = make_batches(workload, 1, defaults["seed"])

    def step() -> None:
        output = forward_backward(objective, [batch])
        _, (squares,) = metrics.read(output.metrics, gradient_square_sum(optimizer))
        optimizer.step(1e-9, guards.clip_scale(math.sqrt(squares), 1.0))
        model.after_step()
        optimizer.clear_gradients()

    return step, batch.num_tokens


def main() -> None:
    args = parse_arguments("ernie")
    workload, defaults = load_workload(args)
    open_device(args.threads)
    from erniecore_ops.parallel import num_workers

    from erniecore import kernels

    chosen = kernels.choose("cpu", {})
    variants = {"reference": kernels.REFERENCES, "kernels": chosen}
    for operator in kernels.OPERATORS:
        variants[f"without {operator}"] = replace(chosen, names={**chosen.names, operator: kernels.REFERENCE})
    step, tokens = (decoding if args.method == "generate" else training)(workload, defaults)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for turn in range(args.warmup + args.steps):
        for name, choice in variants.items():
            kernels.use(choice, num_workers)
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            if turn >= args.warmup:
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    results = {
        name: {"wall_s": statistics.median(w for w, _ in found), "cpu_s": statistics.median(c for _, c in found)}
        for name, found in times.items()
    }
    print(json.dumps({"workload": args.workload, "method": args.method, "tokens": tokens, "variants": results}))


if __name__ == "__main__":
    main()
