"""Loss and further metrics of an objective over held-out data, without gradients. Changes neither weights nor the
mode of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import paddle

from erniecore.engine import metrics
from erniecore.engine.process_group import SingleProcess, combine
from erniecore.engine.scoring.differences import with_differences
from erniecore.types.process_group import ProcessGroup
from erniecore.types.run import Objective
from erniecore.types.samples import Batch

if TYPE_CHECKING:
    from erniecore.types.model import Layer


def evaluate(
    objective: Objective,
    model: Layer,
    batches: Iterable[Batch],
    max_steps: int = 0,
    stop: Callable[[], object] = lambda: None,
    ranks: ProcessGroup | None = None,
) -> dict[str, float]:
    """Means over all tokens of ``batches`` (each token weighs the same), and ``perplexity`` = exp(loss) unless the objective has
    ``is_nll = False``.

    Args:
        objective: its metrics are summed.
        model: put into evaluation mode for the time.
        batches: micro-batches; only the first ``max_steps`` if that is not 0.
        stop: asked before each batch; anything true ends the evaluation with {}.
        ranks: whose batches count together; each has as many.
    """
    means = with_differences(metrics.means(measure(objective, model, batches, max_steps, stop, ranks)))
    if "loss" in means and objective.is_nll:
        # beyond e^700 a float overflows; the perplexity of such a model is of no use anyway
        means["perplexity"] = math.exp(min(means["loss"], 700.0))
    return means


def measure(
    objective: Objective,
    model: Layer,
    batches: Iterable[Batch],
    max_steps: int = 0,
    stop: Callable[[], object] = lambda: None,
    ranks: ProcessGroup | None = None,
) -> dict[str, tuple[float, float]]:
    """The objective's metrics as (sum, weight) over ``batches``, those with weight; arguments as of :func:`evaluate`."""
    training = model.training
    total: dict[str, tuple[paddle.Tensor | float, float]] = {}
    model.eval()
    try:
        with paddle.no_grad():
            for batch in islice(batches, max_steps or None):
                if stop():
                    return {}
                output = objective(batch, objective.normalizers(batch))
                total = metrics.add((total, output.metrics))
    finally:
        if training:
            model.train()
    sums, _ = metrics.read_sums(total)
    sums, _, _ = combine(ranks or SingleProcess(), sums, 0.0, 0)
    return {name: pair for name, pair in sums.items() if pair[1]}
