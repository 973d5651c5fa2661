"""The objective of progressive learning: pre-training on what the schedule leaves of a step. Which tokens, and which values
dropout drops, are functions of the run's seed and the step alone, so a run continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
from erniecore_pretrain.objective import PretrainObjective, without_borders

from erniecore.api import ConfigError
from erniecore.api.method import Batch, LossOutput
from erniecore_progressive.config import ProgressiveConfig
from erniecore_progressive.schedule import Stage, fewer, shortened, stage


class ProgressiveObjective(PretrainObjective):
    """See ``erniecore.api.Objective``. Held-out text is read whole and without dropout.

    Attributes:
        steps, max_length: how long things grow, and to which length; of the run, which sets them before its first step.
        stage: of the present step.
    """

    def __init__(self, config: ProgressiveConfig, policy: Any) -> None:
        super().__init__(policy, document_mask=True, mtp_weight=config.mtp_weight, accuracy=config.accuracy)
        self.config, self.borders = config, config.document_mask
        self.steps, self.max_length = config.steps, 0
        self.stage = Stage(0, 1.0, 0.0)

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """Fewer micro-batches, of shorter windows, while things grow."""
        c = self.config
        end = Stage(self.max_length, 1.0, c.dropout)
        start = Stage(min(c.start_length, self.max_length), c.start_batch, c.start_dropout)
        self.stage = stage(step, self.steps, start, end)
        chosen = fewer(batches, self.stage.batch)
        if self.stage.length >= self.max_length:
            return chosen
        chosen = chosen if self.borders else [without_borders(batch) for batch in chosen]
        return [shortened(batch, self.stage.length) for batch in chosen]

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """As in pre-training; metrics ``progressive/length`` and ``progressive/dropout`` beside, while the model trains."""
        effective = self._effective(batch)
        if not self.policy.training:
            return super().__call__(effective, totals)
        with ExitStack() as hooks:
            if self.stage.dropout:
                hooks.enter_context(_Dropout(self.policy, self.stage.dropout))
            output = super().__call__(effective, totals)
        measured = {
            "progressive/length": (float(self.stage.length), 1.0),
            "progressive/dropout": (self.stage.dropout, 1.0),
        }
        return replace(output, metrics={**output.metrics, **measured})

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """The denominators of pre-training, of the batch as it is at this step."""
        return super().normalizers(self._effective(batch))

    def _effective(self, batch: Batch) -> Batch:
        """Without borders between documents, if there are to be none and windows have not replaced them."""
        whole = not self.policy.training or self.stage.length >= self.max_length
        return without_borders(batch) if not self.borders and whole else batch


class _Dropout:
    """Within the block the embeddings of the model are dropped with probability ``p``, others scaled by 1 / (1 - p)."""

    def __init__(self, policy: Any, p: float) -> None:
        self.policy, self.p, self.handles = policy, p, list[Any]()

    def __enter__(self) -> None:
        layers = [layer for name, layer in self.policy.named_sublayers() if name.rpartition(".")[2] == "embed_tokens"]
        if not layers:
            raise ConfigError.at("method.dropout", "this model has no layer embed_tokens; set method.dropout=0")
        self.handles = [layer.register_forward_post_hook(self._drop) for layer in layers]

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _drop(self, layer: Any, inputs: Any, output: Any) -> paddle.Tensor:
        return F.dropout(output, self.p)
