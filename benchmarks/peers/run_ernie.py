"""erniecore as one more peer: its device, model plugins, objective and training step on the workload's synthetic rows.
What a step of a run does besides (events, console, data from files) is left out."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from common import Clock, Spec, emit, load_workload, make_tokens, parse_arguments


def architecture(model: Spec) -> dict[str, Any]:
    """The workload's model as a config.json."""
    dense = {
        "model_type": "ernie4_5",
        "vocab_size": model["vocab"],
        "hidden_size": model["hidden"],
        "intermediate_size": model["intermediate"],
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "num_key_value_heads": model["kv_heads"],
        "head_dim": model["head_dim"],
        "max_position_embeddings": model["max_pos"],
        "rms_norm_eps": model["rms_eps"],
        "rope_theta": model["rope_theta"],
        "tie_word_embeddings": model["tie"],
        "use_bias": False,
    }
    if model["arch"] == "dense":
        return dense
    return {
        **dense,
        "model_type": "ernie4_5_moe",
        "moe_num_experts": model["experts"],
        "moe_k": model["top_k"],
        "moe_num_shared_experts": model["shared_experts"],
        "moe_intermediate_size": model["moe_intermediate"],
        "moe_layer_start_index": model["moe_start"],
    }


def open_device(threads: int) -> None:
    """The product's own way: environment first, then paddle."""
    import os

    from erniecore.builtin.cpu import plugin
    from erniecore.engine.launch import apply_environment
    from erniecore.types.run import Cluster

    device = plugin.ernie_open_device(config=plugin.Config(threads=threads), cluster=Cluster())
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.pop(name, None)  # the device decides
    apply_environment(device.environment())
    device.open()


def build_model(model: Spec, seed: int) -> Any:
    """A model with random weights, by its plugin."""
    import paddle

    if model["arch"] == "dense":
        from erniecore_ernie45.plugin import plugin
    else:
        from erniecore_ernie45_moe.plugin import plugin
    paddle.seed(seed)
    implementation: Any = plugin  # the dense and the MoE plugin take different arguments of the same hook
    if model["arch"] == "dense":
        return implementation.ernie_build_model(architecture=architecture(model), dtype="float32")
    return implementation.ernie_build_model(config=plugin.Config(), architecture=architecture(model), dtype="float32")


def build_frozen(model: Spec, seed: int) -> Any:
    """The same kept in bfloat16, head and embedding too, as ``--quantizer bf16 quantizer.head=bf16`` keeps a public model. One
    weight after another is drawn in float32 and rounded."""
    import paddle
    from erniecore_ernie45.plugin import plugin
    from erniecore_weight_only.plugin import bf16

    from erniecore.engine.models.filling import fill
    from erniecore.engine.models.random_weights import attach_random

    paddle.seed(seed)  # of what an adapter draws; weights have the seed themselves
    with paddle.LazyGuard():
        built = plugin.ernie_build_model(architecture=architecture(model), dtype="float32")
    attach_random(built, plugin.ernie_state_adapter(architecture=architecture(model)), seed)
    built = bf16.ernie_quantize_model(config=bf16.Config(head="bf16"), model=built, phase="train")
    fill(built)
    return built


def make_batches(workload: Spec, num: int, seed: int) -> list[Any]:
    """One plain causal batch per step."""
    import numpy as np

    from erniecore.types.samples import Batch

    B, S = workload["batch"], workload["seq"]
    tokens = make_tokens(num * B, S + 1, workload["model"]["vocab"], seed)
    positions = np.tile(np.arange(S), (B, 1))
    ends = np.full((B, 1, S, 1), S, np.int32)
    return [
        Batch(rows[:, :-1].copy(), rows[:, 1:].copy(), positions, ends, {}, B * S, B) for rows in np.split(tokens, num)
    ]


def make_pairs(workload: Spec, num: int, seed: int) -> list[Any]:
    """One batch of pairs per step, each in a row as our encoder makes it: the prompt once, both answers behind it."""
    import numpy as np
    from erniecore_preference.encoder import CHOSEN, REJECTED

    from erniecore.data.collate import collate
    from erniecore.types.samples import IGNORE, Sample

    pairs, P, R = (workload["dpo"][name] for name in ("pairs", "prompt", "response"))
    tokens = make_tokens(2 * num * pairs, P + R, workload["model"]["vocab"], seed)
    chosen, rejected = tokens[: num * pairs], tokens[num * pairs :].copy()
    rejected[:, :P] = chosen[:, :P]
    shared, n = P - 1, P - 1 + 2 * R
    first = np.zeros(n, np.int8)
    first[0] = 1
    kind = np.repeat([0, CHOSEN, REJECTED], [shared, R, R]).astype(np.int8)
    samples = [
        Sample(
            input_ids=np.concatenate([a[:-1], b[shared:-1]]),
            labels=np.concatenate([np.full(shared, IGNORE), a[P:], b[P:]]),
            position_ids=np.concatenate([np.arange(P - 1 + R), np.arange(shared, P - 1 + R)]),
            end_rows=np.repeat([n, shared + R, n], [shared, R, R]).astype(np.int32),
            fields={"sample": first, "completion": kind},
        )
        for a, b in zip(chosen, rejected, strict=True)
    ]
    return [collate([[s] for s in samples[i : i + pairs]], pad_id=0) for i in range(0, len(samples), pairs)]


def adapted(model: Any, defaults: Spec) -> Any:
    """With LoRA on all linear layers and experts."""
    from erniecore_lora.plugin import lora

    config = lora.Config(rank=defaults["lora_rank"], alpha=float(defaults["lora_alpha"]))
    return lora.ernie_adapt_model(config=config, model=model)


def objective_of(method: str, model: Any, defaults: Spec) -> Any:
    """That of the method's plugin."""
    from erniecore_preference.plugin import dpo
    from erniecore_sft.objective import SftObjective

    from erniecore.engine.models.reference_model import make_reference

    if method != "dpo":
        return SftObjective(model)
    reference = make_reference(model, "frozen", adapted=True)
    return dpo.ernie_build_objective(config=dpo.Config(beta=defaults["dpo_beta"]), policy=model, reference=reference)


def use_kernels(precision: str = "highest") -> None:
    """Those that are installed, as a run would, with this ``train.matmul_precision``."""
    from erniecore_ops.parallel import num_workers

    from erniecore import kernels

    for warning in kernels.use(kernels.choose("cpu", {}, precision), num_workers):
        print(warning, file=sys.stderr)


def train(args: argparse.Namespace, workload: Spec, defaults: Spec, clock: Clock) -> int:
    """Steps of training; returns the number of parameters."""
    from erniecore.config.adamw import AdamWConfig
    from erniecore.config.core import TrainSection
    from erniecore.engine import metrics
    from erniecore.engine.optimizers.adamw import AdamW
    from erniecore.engine.optimizers.parameters import gradient_square_sum, trained_parameters
    from erniecore.engine.step import forward_backward
    from erniecore.engine.training import guards
    from erniecore.engine.training.recompute import set_recompute

    build = build_frozen if args.opts.get("base") == "bf16" else build_model
    model = build(workload["model"], defaults["seed"])
    if args.method != "sft":
        model = adapted(model, defaults)
    model.train()
    set_recompute(model, "full" if args.recompute else "none")
    one, two = defaults["adam_betas"]
    settings = TrainSection(learning_rate=defaults["lr"], weight_decay=defaults["weight_decay"])
    objective = objective_of(args.method, model, defaults)
    parameters = trained_parameters(model.named_parameters(), settings)
    optimizer = AdamW(parameters, AdamWConfig(beta1=one, beta2=two))
    batches = (make_pairs if args.method == "dpo" else make_batches)(
        workload, args.warmup + args.steps, defaults["seed"]
    )
    clock.mark()
    for batch in batches:
        guards.check_token_ids(batch, workload["model"]["vocab"])
        output = forward_backward(objective, [batch])
        means, (squares,) = metrics.read(output.metrics, gradient_square_sum(optimizer))
        optimizer.step(defaults["lr"], guards.clip_scale(math.sqrt(squares), defaults["max_grad_norm"]))
        model.after_step()
        optimizer.clear_gradients()
        clock.tick(means["loss"])
    return sum(int(p.size) for p in model.parameters())


def generate(args: argparse.Namespace, workload: Spec, defaults: Spec, clock: Clock) -> int:
    """Greedy decoding; one tick per call."""
    from erniecore_generation.generate import generate as decode

    model = build_model(workload["model"], defaults["seed"])
    model.eval()
    prompt = make_tokens(workload["batch"], workload["prompt"], workload["model"]["vocab"], defaults["seed"])
    clock.mark()
    for _ in range(args.warmup + args.steps):
        decode(model, prompt, max_new_tokens=workload["new_tokens"])
        clock.tick()
    return sum(int(p.size) for p in model.parameters())


def peak_tensors_mb() -> float:
    """The most that paddle's tensors held."""
    import paddle

    return round(paddle.base.core.host_memory_stat_peak_value("Allocated", 0) / 2**20, 1)


def main() -> None:
    args = parse_arguments("ernie")
    workload, defaults = load_workload(args)
    workload["seq"] = int(args.opts.get("seq", workload.get("seq", 0)))
    open_device(args.threads)
    if args.opts.get("kernels") != "reference":
        use_kernels(args.opts.get("precision", "highest"))
    clock = Clock()
    num_parameters = (generate if args.method == "generate" else train)(args, workload, defaults, clock)
    emit("ernie", args, workload, defaults, clock, num_parameters=num_parameters, peak_tensors_mb=peak_tensors_mb())


if __name__ == "__main__":
    main()
