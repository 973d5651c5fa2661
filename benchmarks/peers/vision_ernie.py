"""erniecore on the arrays of ``benchmarks.vision``: its device, model, LoRA plugin, objective and training step. What a step of
a run does besides (events, console, data from files) is left out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from common import Clock
from run_ernie import open_device, use_kernels
from vision_common import (
    ALPHA,
    BETAS,
    LEARNING_RATE,
    MAX_NORM,
    RANK,
    WEIGHT_DECAY,
    emit,
    parse_arguments,
    read_batches,
    rss_mb,
)


def read_model(directory: Path, method: str) -> Any:
    """The model of the directory, all of it trained, or with LoRA on its text part."""
    import erniecore

    model = erniecore.load_model(directory)
    if method == "lora":
        from erniecore_lora.plugin import lora

        return lora.ernie_adapt_model(config=lora.Config(rank=RANK, alpha=float(ALPHA)), model=model)
    if "moe_k" in model.architecture:
        from erniecore_ernie45_vl.parts import choose

        choose(model, ("text", "vision", "resampler", "vision_experts"), {})
    return model


def batch_of(model: Any, arrays: dict[str, Any]) -> Any:
    """As a run makes it: labels of the next token, positions on three axes, row indices."""
    import numpy as np
    import paddle

    from erniecore.types.samples import IGNORE, Batch

    ids, own = arrays["input_ids"], {name: arrays[name] for name in ("pixel_values", "image_grid_thw")}
    kinds = ("mm_token_type_ids", "moe_mm_token_type_ids") if "moe_k" in model.architecture else ("mm_token_type_ids",)
    inputs = {**own, **{name: arrays[name] for name in kinds}}
    positions, _ = model.positions(paddle.to_tensor(ids), **{n: paddle.to_tensor(v) for n, v in inputs.items()})
    labels = np.concatenate([arrays["labels"][:, 1:], np.full((len(ids), 1), IGNORE)], axis=1)
    ends = np.full((len(ids), 1, ids.shape[1], 1), ids.shape[1], np.int32)
    return Batch(ids, labels, positions.numpy(), ends, {}, ids.size, len(ids), inputs=inputs)


def main() -> None:
    args = parse_arguments()
    open_device(args.threads)
    use_kernels()
    from erniecore_sft.objective import SftObjective

    from erniecore.config.adamw import AdamWConfig
    from erniecore.config.core import TrainSection
    from erniecore.engine import metrics
    from erniecore.engine.optimizers.adamw import AdamW
    from erniecore.engine.optimizers.parameters import gradient_square_sum, trained_parameters
    from erniecore.engine.step import forward_backward
    from erniecore.engine.training import guards

    arrays, start = read_batches(args.directory), rss_mb()
    model = read_model(args.directory, args.method)
    model.train()
    settings = TrainSection(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    objective = SftObjective(model)
    parameters = trained_parameters(model.named_parameters(), settings)
    optimizer = AdamW(parameters, AdamWConfig(beta1=BETAS[0], beta2=BETAS[1]))
    batches = [batch_of(model, found) for found in arrays]
    clock = Clock()
    for batch in batches:
        guards.check_token_ids(batch, int(model.arch.vocab_size))
        output = forward_backward(objective, [batch])
        means, (squares,) = metrics.read(output.metrics, gradient_square_sum(optimizer))
        optimizer.step(LEARNING_RATE, guards.clip_scale(math.sqrt(squares), MAX_NORM))
        model.after_step()
        optimizer.clear_gradients()
        clock.tick(means["loss"])
    emit(clock, start, sum(int(p.size) for p in model.parameters() if not p.stop_gradient))


if __name__ == "__main__":
    main()
