"""Times the operators of a training step one by one, and the whole step. Prints one JSON line."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from common import Clock, Spec, load_workload, parse_arguments
from run_ernie import build_model, open_device, train, use_kernels


def median_ms(run: Callable[[], object], times: int = 7) -> float:
    """Median after two calls that do not count."""
    seconds = []
    for _ in range(times + 2):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:]) * 1e3


def forward_backward(function: Callable[..., Any], *inputs: Any) -> float:
    """Median of a forward and a backward pass with gradients to all ``inputs``."""
    import paddle

    upstream = paddle.ones_like(function(*inputs))

    def run() -> None:
        for x in inputs:
            x.grad = None
        function(*inputs).backward(upstream)

    return median_ms(run)


def parts(model: Spec, B: int, S: int) -> dict[str, dict[str, float]]:
    """Part -> calls per step and milliseconds of all of them."""
    import paddle
    from erniecore_ops import functions as ops

    H, L, h, k, d = model["hidden"], model["layers"], model["heads"], model["kv_heads"], model["head_dim"]
    width, vocab, tokens = model["intermediate"], model["vocab"], B * S

    def random(*shape: int) -> Any:
        x = paddle.randn(shape) * 0.05
        x.stop_gradient = False
        return x

    cos, sin = ops.rope_tables(paddle.arange(S).unsqueeze(0).tile([B, 1]), d, model["rope_theta"])
    labels, ids = paddle.randint(0, vocab, [tokens]), paddle.randint(0, vocab, [B, S])
    linears = [(H, h * d), (H, k * d), (H, k * d), (h * d, H), (H, width), (H, width), (width, H)]
    hidden = random(B, S, H)
    norm, gate, up = random(H), random(B, S, width), random(B, S, width)
    q, key, value = random(B, S, h, d), random(B, S, k, d), random(B, S, k, d)
    rows, head = random(tokens, H), random(vocab, H)

    def loss(x: Any, w: Any) -> Any:
        return ops.linear_cross_entropy(x, w, labels, transposed=True).sum()

    def all_linears() -> float:
        return sum(forward_backward(ops.linear, random(B, S, i), random(i, o)) for i, o in linears)

    times = {
        "linears": (L, all_linears()),
        "attention": (L, forward_backward(ops.attention, q, key, value)),
        "head and loss": (1, forward_backward(loss, rows, head)),
        "SwiGLU": (L, forward_backward(ops.swiglu, gate, up)),
        "RMS norm": (2 * L + 1, forward_backward(lambda x, w: ops.rms_norm(x, w, 1e-5), hidden, norm)),
        "rotary": (L, sum(forward_backward(lambda x: ops.apply_rope(x, cos, sin), x) for x in (q, key))),
        "embedding": (1, forward_backward(lambda w: ops.embedding(ids, w), head)),
    }
    return {name: {"calls": calls, "ms": calls * ms} for name, (calls, ms) in times.items()}


def optimizer_ms(model: Spec) -> float:
    """Gradient norm and AdamW over all parameters."""
    import paddle

    from erniecore.config.adamw import AdamWConfig
    from erniecore.config.core import TrainSection
    from erniecore.engine.optimizers.adamw import AdamW
    from erniecore.engine.optimizers.parameters import gradient_square_sum, trained_parameters

    built = build_model(model, 0)
    for parameter in built.parameters():
        parameter.grad = paddle.ones_like(parameter)
    optimizer = AdamW(trained_parameters(built.named_parameters(), TrainSection()), AdamWConfig())

    def run() -> None:
        float(gradient_square_sum(optimizer))
        optimizer.step(1e-4, 0.5)

    return median_ms(run)


def main() -> None:
    args = parse_arguments("ernie")
    workload, defaults = load_workload(args)
    open_device(args.threads)
    use_kernels(args.opts.get("precision", "highest"))
    clock = Clock()
    train(args, workload, defaults, clock)
    found = parts(workload["model"], workload["batch"], workload["seq"])
    found["gradient norm and AdamW"] = {"calls": 1, "ms": optimizer_ms(workload["model"])}
    step_ms = statistics.median(clock.wall[args.warmup :]) * 1e3
    print(json.dumps({"workload": workload["name"], "step_ms": step_ms, "parts": found}))


if __name__ == "__main__":
    main()
