"""AdamW with moments of 8 bits. The update is that of AdamW in float32, on moments that are dequantized for it:

    m, v ← dequantized        m, v, θ ← AdamW (Loshchilov & Hutter 2019, algorithm 2)        state ← m, v quantized

Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2021), arXiv:2110.02861; the numbers of a byte and the scales of
blocks are in ``dynamic.py``. One parameter after the other, so that one pair of float32 moments exists at a time.

A checkpoint has the moments as float32 under AdamW's names. They come back bit for bit on the layout that wrote them; on another
one blocks may begin elsewhere, and the moments are rounded once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import paddle  # noqa: TID253

from erniecore.api.adamw import ParameterSlot
from erniecore.api.ops import AdamWTerms, adamw_
from erniecore.api.optimizer import Optimizer, TrainedParameter
from erniecore_adamw8bit.dynamic import dequantized, quantized

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_adamw8bit.config import AdamW8bitConfig

#: moment -> whether it has a sign
MOMENTS = {"first": True, "second": False}


class Slot8bit(ParameterSlot):
    """One parameter whose moments have 8 bits: ``first`` and ``second`` uint8 [n], ``first_scale`` and ``second_scale`` float32
    [k], of the n elements that are updated here."""

    __slots__ = ("block",)

    def __init__(self, given: TrainedParameter, block: int, *, offload: bool) -> None:
        super().__init__(given, (), "float32", offload=offload)
        self.block = block
        size = prod(self.parameter.shape) if self.part is None else self.part[1] - self.part[0]
        for name in MOMENTS:
            self.state[name] = paddle.zeros([size], "uint8")
            self.state[f"{name}_scale"] = paddle.zeros([-(-size // block)])
            self.put(name, paddle.zeros([size]))
        if offload:
            self.state = {name: tensor.cpu() for name, tensor in self.state.items()}

    def moment(self, name: str) -> Tensor:
        """A moment, float32 [n]."""
        return dequantized(self.state[name], self.state[f"{name}_scale"], self.block, signed=MOMENTS[name])

    def put(self, name: str, values: Tensor) -> None:
        """Keep a moment, float32 [n]."""
        codes, scales = quantized(values, self.block, signed=MOMENTS[name])
        paddle.assign(codes, output=self.state[name])
        paddle.assign(scales, output=self.state[f"{name}_scale"])

    def state_tensors(self) -> dict[str, Tensor]:
        """The moments as float32 in the host's memory, shaped like what is updated; the master as it is."""
        shape = self.parameter.shape if self.part is None else [-1]
        found = {f"{self.name}.{name}": self.moment(name).reshape(shape).cpu() for name in MOMENTS}
        masters = {f"{self.name}.master": tensor for name, tensor in self.state.items() if name == "master"}
        return {**found, **masters}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep the moments of :meth:`state_tensors`, which have been overwritten."""
        with self.state_on(self.parameter.place):
            for name in MOMENTS:
                values = tensors[f"{self.name}.{name}"].flatten()
                self.put(name, values._copy_to(self.parameter.place, True))

    def kept(self) -> dict[str, Tensor]:
        """What is in memory."""
        return super().state_tensors()


class AdamW8bit(Optimizer):
    """State per parameter: see :class:`Slot8bit`; of small ones, and unless settings say otherwise of embeddings, AdamW's.

    Args:
        parameters: what is trained.
    """

    slots: Sequence[ParameterSlot]

    def __init__(self, parameters: Sequence[TrainedParameter], config: AdamW8bitConfig) -> None:
        self.config = config
        self.slots = [self._slot(given) for given in parameters]

    def _slot(self, given: TrainedParameter) -> ParameterSlot:
        if self.config.quantizes(given.shard_spec.shape, given.role):
            return Slot8bit(given, self.config.block_size, offload=self.config.offload)
        return ParameterSlot(given, tuple(MOMENTS), "float32", offload=self.config.offload)

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """Update every parameter that has a gradient, one after the other."""
        self.num_updates += 1
        c = self.config
        terms = AdamWTerms(c.beta1, c.beta2, c.epsilon, c.beta1**self.num_updates, c.beta2**self.num_updates, scale)
        self.checked = paddle.zeros([])
        with paddle.no_grad():
            for slot in self.slots:
                if (gradient := slot.gradient) is not None:
                    with slot.state_on(gradient.place):
                        self.checked = self.checked + _update(slot, gradient, learning_rate, terms)

    def restored(self, tensors: Mapping[str, Tensor]) -> None:
        with paddle.no_grad():
            for slot in self.slots:
                if isinstance(slot, Slot8bit):
                    slot.restore(tensors)

    def kept_tensors(self) -> dict[str, Tensor]:
        kept = [slot.kept() if isinstance(slot, Slot8bit) else slot.state_tensors() for slot in self.slots]
        return {name: tensor for tensors in kept for name, tensor in tensors.items()}


def _update(slot: ParameterSlot, gradient: Tensor, learning_rate: float, terms: AdamWTerms) -> Tensor:
    target, packed = slot.target, slot if isinstance(slot, Slot8bit) else None
    first, second = (packed.moment(n).reshape(target.shape) if packed else slot.state[n] for n in MOMENTS)
    rate, decay = learning_rate * slot.given.factor, slot.given.weight_decay
    checked: Tensor = adamw_([target], [gradient], [first], [second], [rate], [decay], terms)
    if packed:
        for name, moment in zip(MOMENTS, (first, second), strict=True):
            packed.put(name, moment.flatten())
    slot.write_back()
    return checked
