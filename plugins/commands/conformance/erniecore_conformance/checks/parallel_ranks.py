"""Checks for parallel strategies with two processes, on the CPU over gloo: what they train together is what one process
trains alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore.api.model import Layout
from erniecore.api.parallel import Cluster, ParallelPlan, ProcessGroup
from erniecore.api.testing import SingleProcess, combine, sum_named
from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_equal
from erniecore_conformance.subjects import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    #: losses and gradient norms of the steps, then the weights
    Trained = Mapping[str, list[float]]

_ROWS, _LENGTH, _STEPS = 4, 9, 3


def check_parallel_two_train_like_one(subject: Subject) -> None:
    """2 processes: losses and gradient norms of three steps (<= 1e-6 relative) and the weights after them (<= 1e-5) are
    those of one process, on both ranks; values are exchanged in the order of ranks."""
    from erniecore.api import ConfigError
    from erniecore_conformance.processes import on_ranks

    try:
        subject.call("ernie_plan_parallel", config=subject.config(), cluster=Cluster(world_size=2), shape=None)
    except ConfigError as error:
        raise NotApplicable(f"it does not plan for two processes: {error}") from error
    ensure(
        subject.implements("ernie_open_process_group"),
        "it plans for several processes without ernie_open_process_group",
    )
    alone = train(SingleProcess(), ParallelPlan({}), None)
    for rank, together in enumerate(on_ranks(2, f"{__name__}:train_together", subject.target)):
        ensure_equal(together.pop("exchanged"), [0.0, 10.0], f"what rank {rank} heard")
        for what, bound in (("losses", 1e-6), ("norms", 1e-5), ("weights", 1e-5)):
            pairs = zip(together[what], alone[what], strict=True)
            worst = max(abs(a - b) / (1.0 if what == "weights" else abs(b)) for a, b in pairs)
            ensure(worst <= bound, f"{what} of rank {rank} differ by {worst:.1e}, allowed {bound:.0e}")


def train_together(cluster: Cluster, target: str) -> dict[str, list[float]]:
    """One rank's side: the strategy at ``target`` with its defaults."""
    subject = Subject.at(target)
    config = subject.config()
    plan = subject.call("ernie_plan_parallel", config=config, cluster=cluster, shape=None)
    ranks = subject.call("ernie_open_process_group", config=config, plan=plan, cluster=cluster, device=None)
    exchanged = [float(value) for value in ranks.all_gather_object(10 * cluster.rank)]
    return {**train(ranks, plan, subject), "exchanged": exchanged}


def train(ranks: ProcessGroup, plan: ParallelPlan, subject: Subject | None) -> dict[str, list[float]]:
    """Three steps of AdamW on this rank's share of the rows."""

    from erniecore.api.testing import full_parameters, gradient_square_sum, new_optimizer
    from erniecore_conformance.toys.compute import random_ids
    from erniecore_conformance.toys.paddle_lm import toy_model

    model: Any = toy_model()
    if subject is not None:
        layout = Layout((("*", "replicate"),))
        model = subject.call("ernie_parallelize", model=model, layout=layout, plan=plan, ranks=ranks)
    optimizer = new_optimizer(model, ranks)
    ranks.attach(optimizer.slots)
    rows = random_ids(_ROWS, _LENGTH, 260)[plan.data_rank :: plan.data_size]
    losses, norms = [], []
    for _ in range(_STEPS):
        count = float(rows[:, 1:].size)
        loss = _summed_loss(model, rows)
        (loss / sum_named(ranks, {"tokens": count})["tokens"]).backward()
        ranks.backward_done()
        ranks.reduce_gradients(optimizer.slots)
        own = gradient_square_sum(optimizer, ranks)
        sums, squares, _ = combine(ranks, {"loss": (float(loss), count)}, own, 0)
        losses.append(sums["loss"][0] / sums["loss"][1])
        norms.append(squares**0.5)
        optimizer.step(1e-2)
        ranks.updated(optimizer.slots)
        optimizer.clear_gradients()
    whole = full_parameters(model, ranks)
    return {"losses": losses, "norms": norms, "weights": [float(x) for array in whole for x in array.reshape(-1)]}


def _summed_loss(model: Any, rows: Any) -> Any:
    """Cross-entropy of the next token, summed; rows int64 [B, S]."""
    import paddle
    from paddle.nn import functional as F

    features = model.features(paddle.to_tensor(rows))
    logits = model.logits(features.hidden[:, :-1])
    return F.cross_entropy(logits, paddle.to_tensor(rows[:, 1:]), reduction="sum")


CHECKS = (Check(check_parallel_two_train_like_one, process=True),)
