"""The losses of pre-training and fine-tuning, of which each micro-step trains the model or a smaller one inside it. All gradients
of a step go into one update of the shared weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_pretrain.objective import PretrainObjective
from erniecore_sft.objective import SftObjective

from erniecore.api import UsageError
from erniecore.api.model import ElasticModel, ElasticSizes
from erniecore.api.training import NextTokenObjective
from erniecore_elastic.config import ElasticSection
from erniecore_elastic.pipeline import PipelineShape, skipped_chunks
from erniecore_elastic.sampling import WHOLE, Drawn, draw

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore.api.method import Batch, LossOutput
    from erniecore.api.model_files import Array

#: how much of what was counted stays after a step: usage is that of some hundred steps
USAGE_DECAY = 0.99
#: inputs of ``ElasticModel.features`` that only smaller models have
_REDUCED = frozenset({"layers", "experts", "num_selected"})


class ElasticObjective(NextTokenObjective):
    """What both losses add to theirs.

    Args:
        elastic: the settings.

    Attributes:
        pipeline: of the run, or None.
        usage: float32 [rows, experts], decayed assignments to each expert in whole passes; None without experts.
    """

    pipeline: PipelineShape | None = None

    def __init__(self, policy: Any, *, elastic: ElasticSection, **options: Any) -> None:
        super().__init__(policy, **options)
        self.elastic = elastic
        self.sizes = _sizes(policy) if elastic.active else ElasticSizes(0)
        self.usage = paddle.zeros([self.sizes.rows, self.sizes.experts]) if self.sizes.experts else None

    def draws(self, seed: int, count: int) -> list[Drawn]:
        """What the ``count`` micro-steps of the step with this seed run."""
        drawn = [draw(self.elastic, self.sizes, seed, micro) for micro in range(count)]
        if self.pipeline is None or self.elastic.retain == 1:
            return drawn
        skipped = skipped_chunks(self.pipeline, count, self.elastic.retain, seed, whole=self.elastic.whole)
        everything = range(self.sizes.layers)
        kept = [tuple(place for place in everything if place not in skipped[micro]) for micro in range(count)]
        return [
            one._replace(layers=None if len(layers) == self.sizes.layers else layers)
            for one, layers in zip(drawn, kept, strict=True)
        ]

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """The batches with what each runs; whole passes stay as they are."""
        batches = super().prepare(batches, step=step, seed=seed)
        if not self.elastic.active:
            return batches
        drawn = self.draws(seed, len(batches))
        if all(one.layers is not None for one in drawn):
            self._fill_gradients()
        return [
            batch if one == WHOLE else replace(batch, inputs={**batch.inputs, **one.inputs()})
            for batch, one in zip(batches, drawn, strict=True)
        ]

    def _fill_gradients(self) -> None:
        """Zeros, where a layer may run in no micro-step: its update is that of a gradient of zero, on however many ranks."""
        for parameter in self.policy.parameters():
            if not parameter.stop_gradient and parameter.grad is None:
                parameter.grad = paddle.zeros_like(parameter)

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss of one micro-batch; also ``elastic/whole_loss`` or ``elastic/reduced_loss``."""
        found = super().__call__(batch, totals)
        if not (self.elastic.active and self.policy.training):
            return found
        name = "elastic/reduced_loss" if _REDUCED & batch.inputs.keys() else "elastic/whole_loss"
        return replace(found, metrics={**found.metrics, name: found.metrics["loss"]})

    def after_step(self, *, step: int, rate: float) -> None:
        """Count which experts were used."""
        super().after_step(step=step, rate=rate)
        if self.usage is not None and (loads := self.policy.expert_loads()) is not None:
            self.usage = USAGE_DECAY * self.usage + loads

    def state_tensors(self) -> Mapping[str, Tensor]:
        """The usage of experts."""
        return {**super().state_tensors(), **({} if self.usage is None else {"expert_usage": self.usage})}

    def load_state_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Restore the usage of experts."""
        if self.usage is not None:
            self.usage = paddle.to_tensor(np.asarray(arrays["expert_usage"], np.float32))
        super().load_state_arrays({name: array for name, array in arrays.items() if name != "expert_usage"})


class ElasticPretrainObjective(ElasticObjective, PretrainObjective):
    """The loss of `pt`, of which each micro-step runs all or a part."""


class ElasticSftObjective(ElasticObjective, SftObjective):
    """The loss of `sft`, of which each micro-step runs all or a part."""


def _sizes(policy: Any) -> ElasticSizes:
    """Raises ``UsageError`` for a model that runs as a whole only."""
    sizes = policy.elastic_sizes() if isinstance(policy, ElasticModel) else None
    if sizes is None:
        raise UsageError(
            "this model cannot run a part of itself, which elastic training needs",
            where="model.name",
            found=str(policy.architecture.get("model_type")),
            expected="a text model with the protocol ElasticModel, such as ernie45 or ernie45-moe",
            fix="train it with method.name=pt or sft",
        )
    return sizes
