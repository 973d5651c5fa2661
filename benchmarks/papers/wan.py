"""Wide-area training (DiLoCo, streaming DiLoCo, SparseLoCo, and an adaptive rule): how much loss does it cost to exchange updates
rarely and in few bits, and what does that save in bytes and in time on slow links?

Four sites train a small transformer on bytes of a real text, each on its own quarter. Everything that sites exchange goes
through the functions of ``erniecore_wan``; links are a formula: rate, 50 ms one way, and every site fetches the updates of the
other three. A step takes a tenth of a second by definition, so that times do not depend on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from erniecore_wan import rules
from erniecore_wan.arrays import AnyArray, Vector
from erniecore_wan.deciding import forms_of
from erniecore_wan.outer import Outer, mixed, outer_step
from erniecore_wan.payload import from_bfloat16, to_bfloat16
from erniecore_wan.sparse import Sparse, with_feedback

from benchmarks.papers.common import Experiment, Found, Results, Verdict

SITES, WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 4, 64, 2, 4, 32, 4
RATE, WARMUP, EVERY, TESTED = 2e-3, 20, 30, 20
STEP_SECONDS, DELAY = 0.1, 0.1
#: name -> bytes per second each way
LINKS = {"1 Gbit/s": 1e9 / 8, "100 Mbit/s": 1e8 / 8, "10 Mbit/s": 1e7 / 8}
OVERHEAD, CAP = 0.1, 15


@dataclass
class Arm:
    """How sites exchange. ``interval`` 0: gradients, in every step. ``adapts``: the link that the adaptive rule knows."""

    interval: int
    outer: Outer = field(default_factory=lambda: Outer("sgd", 1.0))
    form: str = "float32"
    k: int = 64
    fragments: int = 1
    overlap: int = 0
    mixing: float = 1.0
    adapts: str = ""


ARMS: dict[str, Callable[[], Arm]] = {
    "synchronous": lambda: Arm(0),
    "LocalSGD": lambda: Arm(5),
    "DiLoCo": lambda: Arm(15, Outer("nesterov", 0.7, 0.9)),
    "streaming": lambda: Arm(16, Outer("nesterov", 0.7, 0.9), fragments=4, overlap=2, mixing=0.5),
    "SparseLoCo": lambda: Arm(5, form="sparse"),
    "adaptive": lambda: Arm(5, adapts="100 Mbit/s"),
}


def text() -> AnyArray:
    """The bytes of the text. Raises ``SystemExit`` where it is not there."""
    home = os.environ.get("ERNIE_REAL_DATA", "")
    path = Path(home) / "wiki_demo.txt"
    if not home or not path.is_file():
        raise SystemExit("this experiment needs ERNIE_REAL_DATA, a directory with wiki_demo.txt")
    return np.frombuffer(path.read_bytes()[: 4 << 20], np.uint8).astype(np.int64)


class Network:
    """A pre-norm transformer on bytes whose weights are one float32 vector."""

    def __init__(self, seed: int) -> None:
        import paddle

        shapes = {"tokens": (256, WIDTH), "places": (CONTEXT, WIDTH)}
        for layer in range(LAYERS):
            matrices = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
            matrices |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
            shapes |= {f"{layer}.{name}": shape for name, shape in matrices.items()}
        generator = np.random.default_rng(seed)
        self.tensors = {
            name: paddle.to_tensor(0.04 * generator.standard_normal(shape).astype(np.float32), stop_gradient=False)
            for name, shape in shapes.items()
        }
        self.size = sum(int(tensor.size) for tensor in self.tensors.values())

    def weights(self) -> Vector:
        """All weights, float32 [n], in the order of ``tensors``."""
        return np.concatenate([tensor.numpy().reshape(-1) for tensor in self.tensors.values()])

    def load(self, vector: Vector) -> None:
        """The reverse of :meth:`weights`."""
        start = 0
        for tensor in self.tensors.values():
            tensor.set_value(vector[start : start + int(tensor.size)].reshape(tensor.shape))
            start += int(tensor.size)

    def loss(self, rows: AnyArray) -> Any:
        """Mean loss per byte of int64 [batch, CONTEXT + 1]."""
        import paddle
        import paddle.nn.functional as F

        names, batch = self.tensors, len(rows)
        ids = paddle.to_tensor(rows)
        x = F.embedding(ids[:, :-1], names["tokens"]) + names["places"]
        for layer in range(LAYERS):
            qkv = (F.layer_norm(x, WIDTH) @ names[f"{layer}.qkv"]).reshape([batch, CONTEXT, 3, HEADS, WIDTH // HEADS])
            q, k, v = (qkv[:, :, i].transpose([0, 2, 1, 3]) for i in range(3))
            scores = q @ k.transpose([0, 1, 3, 2]) * (WIDTH // HEADS) ** -0.5
            mask = paddle.triu(paddle.full([CONTEXT, CONTEXT], -1e9), 1)
            mixed_values = (F.softmax(scores + mask) @ v).transpose([0, 2, 1, 3]).reshape([batch, CONTEXT, WIDTH])
            x = x + mixed_values @ names[f"{layer}.out"]
            x = x + F.gelu(F.layer_norm(x, WIDTH) @ names[f"{layer}.up"]) @ names[f"{layer}.down"]
        logits = F.layer_norm(x, WIDTH) @ names["tokens"].t()
        return F.cross_entropy(logits.reshape([-1, 256]), ids[:, 1:].reshape([-1]))

    def gradient(self, vector: Vector, rows: AnyArray) -> tuple[Vector, float]:
        """Gradient float32 [n] and loss at ``vector``."""
        self.load(vector)
        for tensor in self.tensors.values():
            tensor.clear_gradient()
        loss = self.loss(rows)
        loss.backward()
        return np.concatenate([tensor.grad.numpy().reshape(-1) for tensor in self.tensors.values()]), float(loss)


class Adam:
    """Adam of one site, on vectors."""

    def __init__(self, size: int) -> None:
        self.mean, self.square, self.count = np.zeros(size, np.float32), np.zeros(size, np.float32), 0

    def step(self, weights: Vector, gradient: Vector) -> Vector:
        """One update of the weights float32 [n]."""
        self.count += 1
        rate = RATE * min(1.0, self.count / WARMUP)
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.95 * self.square + 0.05 * gradient * gradient
        scale = np.sqrt(self.square / (1 - 0.95**self.count)) + 1e-8
        return np.asarray(weights - rate * (self.mean / (1 - 0.9**self.count)) / scale, np.float32)


class Run:
    """Four sites with one seed."""

    def __init__(self, arm: Arm, seed: int) -> None:
        data = text()
        self.arm, self.network, self.generator = arm, Network(seed), np.random.default_rng(seed)
        self.tested, trained = data[: len(data) // 10], data[len(data) // 10 :]
        self.quarters = np.array_split(trained, SITES)
        first = self.network.weights()
        self.anchor, self.state = first.copy(), [{} for _ in range(arm.fragments)]  # type: list[dict[str, AnyArray]]
        self.sites, self.adams = [first.copy() for _ in range(SITES)], [Adam(len(first)) for _ in range(SITES)]
        self.errors = [np.zeros_like(first) for _ in range(SITES)]
        self.ranges = np.array_split(np.arange(len(first)), arm.fragments)
        self.bytes, self.seconds, self.computed = 0.0, dict.fromkeys(LINKS, 0.0), 0.0
        self.begun, self.rounds, self.first_loss = 0, 0, 0.0
        self.waiting: list[tuple[int, int, Vector]] = []

    def rows(self, source: AnyArray, count: int, generator: np.random.Generator) -> AnyArray:
        starts = generator.integers(0, len(source) - CONTEXT - 1, count)
        return np.stack([source[start : start + CONTEXT + 1] for start in starts])

    def tested_loss(self) -> float:
        """Of the mean of the sites, on text that none trains on."""
        self.network.load(np.mean(self.sites, axis=0).astype(np.float32))
        generator = np.random.default_rng(0)
        losses = [float(self.network.loss(self.rows(self.tested, 16, generator))) for _ in range(TESTED)]
        return float(np.mean(losses))

    def paid(self, size: float, hidden: float = 0.0) -> None:
        """An exchange of updates of so many bytes; ``hidden`` seconds of it pass while sites compute."""
        self.bytes += size
        for name, rate in LINKS.items():
            self.seconds[name] += max(0.0, rules.Link(rate, rate, DELAY).seconds(size, (SITES - 1) * size) - hidden)

    def step(self, step: int) -> None:
        """One step of every site, and what is exchanged after it."""
        drawn = [self.rows(quarter, BATCH, self.generator) for quarter in self.quarters]
        found = [self.network.gradient(w, rows) for w, rows in zip(self.sites, drawn, strict=True)]
        self.computed += STEP_SECONDS
        loss = float(np.mean([one for _, one in found]))
        self.first_loss = self.first_loss or loss
        gradients = [gradient for gradient, _ in found]
        if not self.arm.interval:
            mean = rules.weighted_mean(gradients, [1.0] * SITES, [1.0] * SITES)
            gradients = [mean] * SITES
            self.paid(4.0 * len(mean))
        pairs = zip(self.adams, self.sites, gradients, strict=True)
        self.sites = [adam.step(w, gradient) for adam, w, gradient in pairs]
        if self.arm.interval:
            self.arrive(step)
            if step - self.begun >= max(1, self.arm.interval // self.arm.fragments):
                self.begin_round(step, loss)
                self.arrive(step)

    def begin_round(self, step: int, loss: float) -> None:
        """What the sites have learned since the last round becomes the next anchor, which arrives later with overlap."""
        arm, fragment = self.arm, self.rounds % self.arm.fragments
        chosen = self.ranges[fragment]
        updates, size = [], 4.0 * len(chosen)
        for site, own in enumerate(self.sites):
            delta = self.anchor[chosen] - own[chosen]
            if arm.form == "sparse":
                data, sent, left = with_feedback(delta, self.errors[site][chosen], Sparse(arm.k))
                self.errors[site][chosen], size = left, float(len(data))
            else:
                sent = delta if arm.form == "float32" else from_bfloat16(to_bfloat16(delta))
                size = (4.0 if arm.form == "float32" else 2.0) * len(chosen)
            updates.append(sent)
        mean = rules.weighted_mean(updates, [1.0] * SITES, [1.0] * SITES)
        after, self.state[fragment] = outer_step(arm.outer, self.anchor[chosen], mean, self.state[fragment])
        self.anchor[chosen] = after
        self.paid(size, arm.overlap * STEP_SECONDS)
        self.waiting.append((step + arm.overlap, fragment, after))
        self.begun, self.rounds = step, self.rounds + 1
        if arm.adapts:
            rate = LINKS[arm.adapts]
            found = rules.choose(
                forms_of(len(self.anchor), 64, 4096),
                link=rules.Link(rate, rate / (SITES - 1), DELAY),
                step_seconds=STEP_SECONDS,
                overhead=OVERHEAD,
                cap=CAP,
                loss=loss,
                first_loss=self.first_loss,
            )
            arm.interval, arm.form, arm.k = found.interval, found.form, found.k

    def arrive(self, step: int) -> None:
        """What is due becomes the weights of every site."""
        for due, fragment, common in [one for one in self.waiting if one[0] <= step]:
            chosen = self.ranges[fragment]
            for own in self.sites:
                own[chosen] = mixed(own[chosen], common, self.arm.mixing)
            self.waiting.remove((due, fragment, common))


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """Train, and test every few steps."""
    made = Run(ARMS[arm](), seed)
    by_bytes, by_seconds = [], []
    for step in range(1, steps + 1):
        made.step(step)
        if step % EVERY == 0:
            loss = made.tested_loss()
            by_bytes.append((made.bytes / 1e6, loss))
            by_seconds.append((made.computed + made.seconds["100 Mbit/s"], loss))
    times = {f"s at {name}": made.computed + spent for name, spent in made.seconds.items()}
    used = made.computed / times["s at 100 Mbit/s"]
    values = {"loss": by_bytes[-1][1], "MB": made.bytes / 1e6, **times, "used": used, "rounds": float(made.rounds)}
    return Found(values, {"bytes": by_bytes, "time": by_seconds})


def judge(results: Results) -> tuple[Verdict, str]:
    """By the rule, at 100 Mbit/s."""
    ours, said, verdict = "adaptive", [], "seen"
    others = [arm for arm in ARMS if arm != ours]
    for cost in ("MB", "s at 100 Mbit/s"):
        cheaper = [arm for arm in others if results.mean(arm, cost) <= results.mean(ours, cost)]
        better = [arm for arm in cheaper if results.mean(arm, "loss") < results.mean(ours, "loss")]
        surely = [arm for arm in better if results.compare(arm, ours, "loss").judged() == "seen"]
        said.append(
            f"by {cost}, below it: {', '.join(better) or 'none'}" + (f" ({', '.join(surely)} surely)" if surely else "")
        )
        verdict = "contrary" if surely or verdict == "contrary" else "not seen" if better else verdict
    return verdict, "; ".join(said)  # type: ignore[return-value]


def arms() -> Sequence[str]:
    return list(ARMS)


EXPERIMENT = Experiment(
    name="wan",
    title="Wide-area training",
    question="Is an adaptive choice of interval and compression on or below the front of the fixed methods, in loss "
    "against bytes and against time at 100 Mbit/s?",
    rule="seen: no fixed arm with at most as many bytes, and none with at most as many seconds, has a lower mean loss; "
    "contrary: one has, and the 95 % interval of the paired difference is below 0; else not seen",
    size="4 sites, 2 layers of width 64 on bytes (context 32), 4 rows a step and site, {steps} steps; each site has a "
    "quarter of the text",
    baseline="synchronous",
    arms=arms(),
    measures={
        "loss": "nats per byte on text that nobody trains on, mean of the sites' weights",
        "MB": "that a site sends",
        "s at 1 Gbit/s": "emulated seconds",
        "s at 100 Mbit/s": "emulated seconds",
        "s at 10 Mbit/s": "emulated seconds",
        "used": "share of the time at 100 Mbit/s in which sites compute",
        "rounds": "exchanges",
    },
    run=run,
    judge=judge,
    seeds=3,
    steps=150,
    axes={"bytes": ("MB sent by a site", "loss"), "time": ("emulated seconds at 100 Mbit/s", "loss")},
)
