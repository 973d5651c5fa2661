"""Progressive learning of ERNIE 3.0 (arXiv:2107.02137): in the first steps the model reads less at once, a step learns from
fewer micro-batches and drops less, and all of that grows with the learning rate. Functions of the step alone, so a run continues
bit for bit.
"""

from __future__ import annotations

from typing import Any

from erniecore_progressive.schedule import Stage, stage
from paddle import nn  # noqa: TID253

from erniecore_ernie3_pretrain.config import Ernie3PretrainConfig


class Growth:
    """Stages of a run, and the dropout of its model.

    Args:
        config: the method's section. policy: the model; its dropout layers have the probability at the end.

    Attributes:
        end: the stage after growth. grows: whether any stage is another one. steps: how long; of the run, which sets it before
            its first step.
    """

    def __init__(self, config: Ernie3PretrainConfig, policy: Any) -> None:
        self.layers = [layer for layer in policy.sublayers() if isinstance(layer, nn.Dropout)]
        dropout = max((float(layer.p) for layer in self.layers), default=0.0)
        self.end = Stage(config.segment_length, 1.0, dropout)
        self.start = Stage(
            config.start_length or config.segment_length, config.start_batch, config.start_dropout * dropout
        )
        self.grows, self.steps = self.start != self.end, config.steps

    def at(self, step: int) -> Stage:
        """The stage of a step, with which the model drops from here on."""
        if not self.grows:
            return self.end
        found = stage(step, self.steps, self.start, self.end)
        for layer in self.layers:
            layer.p = found.dropout
        return found
