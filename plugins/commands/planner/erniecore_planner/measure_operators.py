"""What operators of training cost on a device, one by one: forward and backward of ``erniecore_ops`` with the kernels that a
run would choose. Rounds over all of them, so that a slow moment of the machine hits all alike. Imports paddle when called.

A processor's single thread is timed by the seconds that it ran, not by the clock on the wall: what others do on the machine
lengthens only the latter.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from erniecore.api.device import Device
from erniecore.api.measuring import open_device, use_kernels
from erniecore_planner.operators import UNITS, Costs
from erniecore_planner.rates import identity

#: rows of the products; [a, b] of their matrices, by the smallest side
TOKENS = 2048
MATRICES = {8: (512, 8), 32: (512, 32), 128: (128, 512), 256: (256, 768), 512: (512, 1536), 1024: (1024, 2048)}
#: rows of the attention; heads of queries and of keys, head size
LENGTHS, HEADS = (256, 1024, 4096), (8, 2, 64)
#: experts, how many a token takes, hidden, width, tokens
EXPERTS = (8, 2, 256, 128, 1024)
#: tokens, hidden, vocabulary of the loss; vocabulary, hidden, tokens of the embedding; parameters of the update
LOSS, TABLE, PARAMETERS = (1024, 64, 8192), (8192, 256, 1024), 4 << 20

Run = Callable[[], Any]


def measure_operators(name: str, dtype: str, rounds: int) -> tuple[Costs, dict[str, float]]:
    """Costs, and the median seconds of every case.

    Raises:
        UsageError: the device has no such dtype. DeviceUnavailable: it cannot be opened.
    """
    device = open_device(name, dtype)
    use_kernels(device)
    found = timed(cases(dtype), rounds, clock_of(device))
    machine, now = identity(device.describe()), datetime.now().isoformat(timespec="seconds")
    return costs_of(found, device.name, machine, dtype, now), found


def clock_of(device: Device) -> Callable[[], float]:
    """What tells the time of work on a device."""
    return time.process_time if device.threads == 1 else time.perf_counter


def timed(runs: dict[str, Run], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of each, in turns, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = clock()
            wait(run())
            if number:
                times[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def wait(result: Any) -> None:
    """Until the device has it: one number is read."""
    while isinstance(result, (list, tuple)):
        result = result[-1]
    if result is not None and result.size:
        result.flatten()[0].item()


def back(function: Callable[..., Any], *inputs: Any) -> Run:
    """Forward and backward with respect to all floating inputs."""
    import paddle

    learned = [x for x in inputs if x.is_floating_point()]
    for x in learned:
        x.stop_gradient = False
    gradient = paddle.ones_like(function(*inputs))
    return lambda: paddle.grad([function(*inputs)], learned, [gradient])


def forward(function: Callable[..., Any], *inputs: Any) -> Run:
    """A call of the function without gradients."""
    import paddle

    def run() -> Any:
        with paddle.no_grad():
            return function(*inputs)

    return run


def cases(dtype: str) -> dict[str, Run]:
    """The calls to measure, by name."""
    import paddle

    from erniecore.api import ops

    def some(*shape: int) -> Any:
        return paddle.randn(list(shape)).astype(dtype)

    runs: dict[str, Run] = {}
    for side, (a, b) in MATRICES.items():
        runs[f"product {side}"] = three_products(some(TOKENS, a), some(a, b), some(TOKENS, b))
    queries, keys, size = HEADS
    for length in LENGTHS:
        parts = some(1, length, queries, size), some(1, length, keys, size), some(1, length, keys, size)
        runs[f"attention {length}"] = forward(ops.attention, *parts)
        runs[f"attention {length}, both"] = back(ops.attention, *(x.clone() for x in parts))
    stream = TOKENS, 512
    weight = paddle.ones([stream[1]], dtype)
    runs["norm"] = back(lambda x, w: ops.rms_norm(x, w, 1e-5), some(*stream), weight)
    runs["swiglu"] = back(ops.swiglu, some(*stream), some(*stream))
    cosines, sines = ops.rope_tables(paddle.arange(TOKENS).unsqueeze(0), 64, 1e4)
    runs["rope"] = back(lambda x: ops.apply_rope(x, cosines, sines), some(1, TOKENS, 8, 64))
    runs["add"] = forward(paddle.add, some(*stream), some(*stream))
    runs["call"] = back(many_calls, some(8, 8))
    return runs | sparse_cases(some) | {"update": updated()}


def three_products(x: Any, w: Any, dy: Any) -> Run:
    """A layer's products: forward, and of its input's and its weight's gradient."""
    import paddle

    def run() -> Any:
        with paddle.no_grad():
            return [paddle.matmul(x, w), paddle.matmul(dy, w, transpose_y=True), paddle.matmul(x, dy, transpose_x=True)]

    return run


#: operators of one run of ``many_calls``
CALLS = 40


def many_calls(x: Any) -> Any:
    """Small operators one after the other."""
    for _ in range(CALLS):
        x = x * 0.999
    return x


def sparse_cases(some: Callable[..., Any]) -> dict[str, Run]:
    """Experts, loss and embedding."""
    import paddle

    from erniecore.api import ops

    experts, selected, hidden, width, tokens = EXPERTS
    chosen = (paddle.arange(tokens * selected).reshape([tokens, selected])) % experts
    weights = paddle.full([tokens, selected], 1 / selected)
    matrices = some(experts, hidden, width), some(experts, hidden, width), some(experts, width, hidden)
    moe = back(
        lambda x, gate, up, down: ops.grouped_swiglu(x, gate, up, down, chosen, weights),
        some(tokens, hidden),
        *matrices,
    )
    learned, narrow, vocab = LOSS
    labels = paddle.arange(learned) % vocab
    loss = back(
        lambda x, w: ops.linear_cross_entropy(x, w, labels, transposed=False),
        some(learned, narrow),
        some(narrow, vocab),
    )
    rows, wide, looked = TABLE
    ids = paddle.arange(looked) * 7 % rows
    return {"experts": moe, "loss": loss, "table": back(lambda w: ops.embedding(ids, w), some(rows, wide))}


def updated() -> Run:
    """Norm of the gradients, and the update."""
    import paddle

    from erniecore.api.ops import AdamWTerms, adamw_, square_sum

    parts = [[paddle.rand([PARAMETERS // 8]) for _ in range(8)] for _ in range(4)]
    terms = AdamWTerms(0.9, 0.95, 1e-8, 0.5, 0.5, 0.9)

    def run() -> Any:
        with paddle.no_grad():
            adamw_(parts[0], parts[1], parts[2], parts[3], [1e-5] * 8, [0.1] * 8, terms)
            return square_sum(parts[1])

    return run


def costs_of(found: dict[str, float], device: str, machine: str, dtype: str, day: str) -> Costs:
    """Per element and operation; what an operator has of other classes is taken off."""
    products = tuple((side, 6.0 * TOKENS * a * b / found[f"product {side}"]) for side, (a, b) in MATRICES.items())
    work = {length: 2.0 * length * length * HEADS[0] * HEADS[2] for length in LENGTHS}
    attention = tuple(
        (length, work[length] / found[f"attention {length}"], work[length] / found[f"attention {length}, both"])
        for length in LENGTHS
    )
    elements = TOKENS * 512
    units = {name: found[name] / elements for name in ("norm", "swiglu", "rope", "add")}
    rows, wide, looked = TABLE
    units |= {"call": found["call"] / CALLS, "update": found["update"] / PARAMETERS}
    units |= {"table": found["table"] / ((rows + looked) * wide), "sort": 0.0, "loss": 0.0}
    costs = Costs(device, machine, dtype, day, products, attention, units)
    experts, selected, hidden, width, tokens = EXPERTS
    routed = tokens * selected
    inside = 18.0 * routed * hidden * width / costs.product(min(routed / experts, hidden, width))
    inside += routed * width * units["swiglu"]
    learned, narrow, vocab = LOSS
    head = 6.0 * learned * narrow * vocab / costs.product(narrow)
    units["sort"] = max(found["experts"] - inside, 0.1 * found["experts"]) / (routed * hidden)
    units["loss"] = max(found["loss"] - head, 0.1 * found["loss"]) / (learned * vocab)
    assert set(units) == set(UNITS)
    return costs
