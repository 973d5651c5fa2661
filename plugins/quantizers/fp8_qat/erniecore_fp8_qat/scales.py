"""The scale of a layer's inputs: what training remembers of it, and which scale a batch gets. A layer with it has the
buffers ``activation_scale`` float32 [1] and ``activation_steps`` int32 [1], which checkpoints hold.

In its first ``warmup`` steps a batch has the scale that fits it, and a is the mean of the steps' scales; then a is used, and
a ← (1 - rate) a + rate s. s is the largest scale that any batch of the step asked for, on any rank, so that neither
micro-batches nor ranks nor recomputed layers change a. In evaluation a is used; where there is none yet (0), batches have
their own.
"""

from __future__ import annotations

from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api.experts import SequenceShard
from erniecore_fp8_qat.amax import AmaxReduction, SourcedRows
from erniecore_fp8_qat.recipes import Recipe

#: buffers that belong to the quantizer, not to the model
NAMES = ("activation_scale", "activation_steps")


class InputScale(nn.Layer):  # type: ignore[misc]
    """Base of layers whose inputs are rounded.

    Attributes:
        recipe: how to compute. warmup, rate: see above. partners: see ``Recipe.pack``.
        joined: where ranks have parts of the weight or of the inputs. arrived: where these came from, in a pass.
    """

    #: see ``erniecore.engine.models.quantized``: names of tensors that a plain model does not have
    quantizer_state: tuple[str, ...] = ()

    def __init__(self, recipe: Recipe, warmup: int, rate: float) -> None:
        super().__init__()
        self.recipe, self.warmup, self.rate = recipe, warmup, rate
        self.partners: list[Tensor] = []  # weights that have one scale with this layer's; they belong to other layers
        self.amax, self.arrived = AmaxReduction(), list[SourcedRows]()
        self._step_scale: list[Tensor] = []  # the largest scale of this step; in a list, or it would become a buffer
        if recipe.static:
            self.quantizer_state = NAMES
            self.register_buffer("activation_scale", paddle.zeros([1]))
            self.register_buffer("activation_steps", paddle.zeros([1], "int32"))

    def shard_sequences(self, shard: SequenceShard) -> None:
        """See ``SequenceStatistics``: the scale of a batch is that of all its positions."""
        self.amax.positions = shard

    def take_scale(self, other: InputScale) -> None:
        """Go on with the scale of ``other``."""
        for name in self.quantizer_state:
            getattr(self, name).set_value(getattr(other, name))

    def scale_of(self, transformed: Tensor) -> Tensor:
        """The scale of the transformed inputs [N, I] float32, [1], or [N, 1] of rows of several batches; noted when
        training."""
        if not self.recipe.static:
            return paddle.ones([1])
        rows = self.arrived[0] if self.arrived else None
        with paddle.no_grad():
            fresh = self.recipe.scale_of(self.amax.of_inputs(transformed, rows))
            known = self.activation_scale > 0
            if self.training:
                largest = fresh.max().reshape([1])
                self._step_scale = [paddle.maximum(self._step_scale[0], largest) if self._step_scale else largest]
                known = known.logical_and(self.activation_steps >= self.warmup)
            if rows is not None and transformed.size:
                fresh = paddle.gather(fresh, rows.source).unsqueeze(1)
            return paddle.where(known, self.activation_scale, fresh)

    def step_scale(self) -> Tensor:
        """[1]: the largest scale of the step; 0 when no batch came."""
        return self._step_scale[0] if self._step_scale else paddle.zeros([1])

    def step_done(self, scale: float) -> None:
        """Take the ``scale`` of a step into the mean; 0: nothing was seen."""
        self._step_scale = []
        if scale <= 0:
            return
        steps, mean = int(self.activation_steps.item()), float(self.activation_scale.item())
        mean = (mean * steps + scale) / (steps + 1) if steps < self.warmup else mean + self.rate * (scale - mean)
        if steps == 0:
            mean = scale
        self.activation_scale.set_value(paddle.to_tensor([mean], "float32"))
        self.activation_steps.set_value(paddle.to_tensor([steps + 1], "int32"))


def learners(model: nn.Layer) -> dict[str, InputScale]:
    """The layers of ``model`` that remember a scale, by name."""
    return {
        name: layer for name, layer in model.named_sublayers() if isinstance(layer, InputScale) and layer.recipe.static
    }


def end_step(model: nn.Layer, ranks: Any, *, applied: bool) -> None:
    """Once per optimizer step on all ranks: each layer gets the largest scale that any rank saw which has it. What a step that
    was not applied saw is forgotten."""
    layers = learners(model)
    here: dict[str, float] = {}
    if layers and applied:
        scales = paddle.concat([layer.step_scale() for layer in layers.values()]).numpy().tolist()
        here = dict(zip(layers, scales, strict=True))
    largest: dict[str, float] = {}
    for found in ranks.all_gather_object(here):
        largest |= {name: max(scale, largest.get(name, 0.0)) for name, scale in found.items()}
    for name, layer in layers.items():
        layer.step_done(largest.get(name, 0.0))
