"""Seconds of a training step by class of operator: how much of each a step has, times what one of it was measured to cost
(``ernie bench operators``), times a factor per class that steps of real runs gave (``ernie bench train``). Pure functions.

Letters: T tokens of a micro-batch, H hidden, q = heads x head size, k = key heads x head size, I width of the MLP, N = T x
selected experts, E experts, V vocabulary, P trained parameters.

| class | how much of it |
|---|---|
| products | 2 a b c operations of each product of [a, b] and [b, c], by the smallest of a, b, c |
| attention | 2 S q T operations of a causal row of S, by S |
| elementwise | elements of norms (T H), rotary positions (T (q + k)), the MLP's product (T I), sums (T H) |
| experts | 6 N H W operations at the rate of N / E rows, and N H elements that are sorted and added back |
| loss | T V logits |
| embedding | V H elements of a gradient, T H elements that are looked up |
| update | P parameters; and P sums of gradients for each further micro-batch |
| calls | operators that are called, however small |

Forward, backward and recomputation are counted as in ``flops``; norms and the product of the MLP are always recomputed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

from erniecore.api.model import DecoderShape, LayerShape
from erniecore_planner.activations import Work

#: classes of operators
CLASSES = ("products", "attention", "elementwise", "experts", "loss", "embedding", "update", "calls")
#: what has a cost per element: forward and backward together. ``loss`` is forward alone too, as a reference needs it.
UNITS = ("norm", "rope", "swiglu", "add", "sort", "loss", "table", "update", "call")
#: share of forward and backward that a forward pass takes, where nothing was measured apart
FORWARD = 1 / 3
#: operators of a layer: forward and backward; those of a mixture of experts; of one low-rank update; of a micro-batch and a step
LAYER_CALLS, EXPERT_CALLS, UPDATE_CALLS, BATCH_CALLS, STEP_CALLS = 30, 60, 4, 30, 60


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured on one machine.

    Attributes:
        device, machine, dtype, day: as in ``rates.Rate``.
        products: (smallest side, operations per second), sides rising. attention: (length of a row, operations per second
            forward, the same of forward and backward together counted as forward's).
        units: seconds per element, by ``UNITS``.
    """

    device: str
    machine: str
    dtype: str
    day: str
    products: tuple[tuple[int, float], ...]
    attention: tuple[tuple[int, float, float], ...]
    units: Mapping[str, float]

    def product(self, side: float) -> float:
        """Operations per second of a product whose smallest side is ``side``."""
        return between([(float(s), rate) for s, rate in self.products], side)

    def scores(self, length: float, *, backward: bool) -> float:
        """Operations per second of the attention over rows of ``length``."""
        return between([(float(s), both if backward else forward) for s, forward, both in self.attention], length)


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Value at ``at``: straight lines over logarithms between rising points, level beyond them."""
    places = [place for place, _ in points]
    index = bisect_left(places, at)
    if index == 0:
        return points[0][1]
    if index == len(points):
        return points[-1][1]
    (low, first), (high, last) = points[index - 1], points[index]
    share = log(at / low) / log(high / low)
    return float(first * (last / first) ** share)


@dataclass(frozen=True, slots=True)
class Load:
    """What one process does in a step, beside ``Work``.

    Attributes:
        micro_batches: of a step. trained: parameters that are updated here. adapter: those of an adapter, None: all are
            trained. updates: number of low-rank updates. reference: forward passes beside the policy (0 or 1).
        first, last: whether it has the embedding, and the head. routed: share of the tokens' experts that it works on.
    """

    micro_batches: int
    trained: float
    adapter: int | None = None
    updates: int = 0
    reference: int = 0
    first: bool = True
    last: bool = True
    routed: float = 1.0


def step_parts(shape: DecoderShape, work: Work, load: Load, costs: Costs) -> dict[str, float]:
    """Seconds of one optimizer step by class, of the layers of ``shape`` in one process."""
    each = dict.fromkeys(CLASSES, 0.0)
    for layer in (*shape.layers, *(shape.mtp_layers if load.last else ())):
        add(each, layer_parts(shape.hidden, layer, work, load, costs))
    if load.last:
        add(each, head_parts(shape, work, load, costs))
    if load.first:
        table = 0 if load.adapter is not None else shape.vocab * shape.hidden
        each["embedding"] += costs.units["table"] * (table + work.tokens * shape.hidden)
    if load.adapter is not None:
        add(each, adapter_parts(work, load, costs))
    each["calls"] += costs.units["call"] * BATCH_CALLS
    step = {name: load.micro_batches * seconds for name, seconds in each.items()}
    step["update"] += load.trained * (costs.units["update"] + (load.micro_batches - 1) * costs.units["add"])
    step["calls"] += costs.units["call"] * STEP_CALLS
    return step


def add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    """Add ``more`` to ``sums`` in place."""
    for name, seconds in more.items():
        sums[name] += seconds


def layer_parts(hidden: int, layer: LayerShape, work: Work, load: Load, costs: Costs) -> dict[str, float]:
    """Of one micro-batch through one layer, forward, backward, again and reference."""
    T, units = work.tokens, costs.units
    full, attended = work.recompute == "full", work.recompute in ("full", "attention", "core-attention")
    passes = (2 if load.adapter is not None else 3) + load.reference + full
    projections = passes + (work.recompute == "attention")
    queries, keys = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    products = projections * sum(_product(T, hidden, width, costs) for width in (queries, queries, keys, keys))
    products += passes * 3 * _product(T, hidden, layer.mlp, costs)
    scores = 2.0 * T * work.length * queries
    forward = (load.reference + attended) * scores
    attention = scores / costs.scores(work.length, backward=True) + forward / costs.scores(work.length, backward=False)
    more = 1 + FORWARD * (load.reference + full)
    rematerialized = more + FORWARD
    elementwise = rematerialized * (2 * T * hidden * units["norm"] + T * layer.mlp * units["swiglu"])
    elementwise += more * (T * (queries + keys) * units["rope"] + 2 * T * hidden * units["add"])
    experts = 0.0
    if layer.experts:
        rows = T * layer.selected * load.routed
        each = rows / layer.experts
        products += passes * _product(T, hidden, layer.experts, costs)
        experts = passes * 6.0 * rows * hidden * layer.expert / costs.product(min(each, hidden, layer.expert))
        experts += more * rows * hidden * units["sort"] + rematerialized * rows * layer.expert * units["swiglu"]
    number = LAYER_CALLS + (EXPERT_CALLS + 6 * layer.experts if layer.experts else 0)
    calls = more * number * units["call"]
    return {
        "products": products,
        "attention": attention,
        "elementwise": elementwise,
        "experts": experts,
        "calls": calls,
    }


def _product(tokens: int, hidden: int, width: int, costs: Costs) -> float:
    """Seconds of one product of the hidden states with a matrix."""
    return 2.0 * tokens * hidden * width / costs.product(min(tokens, hidden, width)) if width else 0.0


def head_parts(shape: DecoderShape, work: Work, load: Load, costs: Costs) -> dict[str, float]:
    """The last norm, the head and the loss of one micro-batch; a further time for each depth of multi-token prediction."""
    passes = (3 if work.head_trained else 2) + load.reference
    often = 1 + len(shape.mtp_layers)
    product = _product(work.tokens, shape.hidden, shape.vocab, costs)
    loss = (1 + FORWARD * load.reference) * work.tokens * shape.vocab * costs.units["loss"]
    norm = work.tokens * shape.hidden * costs.units["norm"]
    return {"products": often * passes * product, "loss": often * loss, "elementwise": often * norm}


def adapter_parts(work: Work, load: Load, costs: Costs) -> dict[str, float]:
    """Of all low-rank updates: two thin products each, forward and twice backward."""
    if not load.updates or load.adapter is None:
        return {}
    rank = work.ranks / load.updates
    again = work.recompute == "full"
    thin = (3 + again) * 2.0 * work.tokens * load.adapter / costs.product(rank)
    return {"products": thin, "calls": (1 + FORWARD * again) * load.updates * UPDATE_CALLS * costs.units["call"]}


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of a real run: seconds that operators alone should take, by class, and what a step took.

    Attributes:
        device, machine, dtype, day: as in ``rates.Rate``. label: what was run. basis: day and time of the costs that
            ``parts`` come from.
    """

    device: str
    machine: str
    dtype: str
    day: str
    label: str
    basis: str
    parts: Mapping[str, float]
    seconds: float


#: how strongly factors are held to 1; bounds of a factor
HOLD, LEAST, MOST = 0.02, 0.2, 5.0


def factors(timed: Sequence[Timed]) -> dict[str, float]:
    """Factor per class by which parts explain the seconds best: least squares of relative errors, each factor held to 1 as
    by ``HOLD`` errors of its size (ridge regression; Hoerl & Kennard, 1970), by coordinate descent within bounds."""
    rows = [{name: run.parts.get(name, 0.0) / run.seconds for name in CLASSES} for run in timed]
    single = {a: sum(row[a] for row in rows) for a in CLASSES}
    double = {a: {b: sum(row[a] * row[b] for row in rows) for b in CLASSES} for a in CLASSES}
    found = dict.fromkeys(CLASSES, 1.0)
    for _ in range(200):
        for name in CLASSES:
            others = sum(found[other] * double[name][other] for other in CLASSES if other != name)
            best = (HOLD + single[name] - others) / (HOLD + double[name][name])
            found[name] = min(MOST, max(LEAST, best))
    return found


def cut(shape: DecoderShape, first: int, end: int, tensor: int, expert: int) -> DecoderShape:
    """The layers ``first`` to ``end`` as one of ``tensor`` ranks has them; experts stay whole on a rank, which has some."""
    assert end > first

    def own(layer: LayerShape) -> LayerShape:
        return replace(
            layer,
            heads=layer.heads // tensor,
            kv_heads=max(1, layer.kv_heads // tensor),
            mlp=layer.mlp // tensor,
            experts=layer.experts // (tensor * expert),
            selected=layer.selected,
        )

    mtp_layers = tuple(own(layer) for layer in shape.mtp_layers) if end == len(shape.layers) else ()
    layers = tuple(own(layer) for layer in shape.layers[first:end])
    return replace(shape, vocab=shape.vocab // tensor, layers=layers, mtp_layers=mtp_layers)
