"""The loss of each of 200 steps with the kernels and without, from the same weights on the same rows. Prints one JSON line.

Two runs in one process: differences are the kernels' rounding and what training makes of it.
"""

from __future__ import annotations

import json
import math
from typing import Any

from common import Spec, load_workload, parse_arguments
from run_ernie import build_model, make_batches, open_device


def losses(workload: Spec, defaults: Spec, steps: int) -> list[float]:
    """Of supervised fine-tuning from the seed's weights."""
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
    found = []
    for batch in make_batches(workload, steps, defaults["seed"]):
        output = forward_backward(objective, [batch])
        means, (squares,) = metrics.read(output.metrics, gradient_square_sum(optimizer))
        optimizer.step(defaults["lr"], guards.clip_scale(math.sqrt(squares), defaults["max_grad_norm"]))
        optimizer.clear_gradients()
        found.append(float(means["loss"]))
    return found


def main() -> None:
    args = parse_arguments("ernie")
    workload, defaults = load_workload(args)
    workload["seq"], workload["batch"] = int(args.opts.get("seq", 128)), int(args.opts.get("batch", 2))
    open_device(args.threads)
    from erniecore_ops.parallel import num_workers

    from erniecore import kernels

    chosen: Any = kernels.choose("cpu", {})
    curves = []
    for choice in (chosen, kernels.REFERENCES):
        kernels.use(choice, num_workers)
        curves.append(losses(workload, defaults, args.steps))
    apart = [abs(a - b) for a, b in zip(*curves, strict=True)]
    facts = {"first": curves[0][0], "last": curves[0][-1], "most_apart": max(apart), "apart_at_the_end": apart[-1]}
    print(json.dumps({"workload": args.workload, "steps": args.steps, **facts}))


if __name__ == "__main__":
    main()
