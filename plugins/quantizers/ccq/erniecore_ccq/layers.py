"""Layers whose weights are convolutional codes, decoded where they are used. They are those of ``weight_only`` with other
buffers, so they are ``erniecore.api.PackedLayer``, and adapters train on them. No kernel multiplies with these codes yet.

    ccq-2.5    quant_weight int16 [.., 10 G, O]    super_scale float32 [.., O]
    ccq-2.06   quant_weight uint8 [.., 16 G, O]    super_scale, code_scale, code_zp float32 [.., O]
               weight_scale uint8 [.., ceil(G / 2), O]

What the bits mean is in ``words`` and ``clusters``. Letters: I inputs, O outputs, E experts, G groups of 64 inputs; ``..``
is E or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_weight_only.layers import PackedExperts, PackedLinear, PackedWeight
from erniecore_weight_only.packing import Kinds
from erniecore_weight_only.schemes import Scheme
from numpy.typing import NDArray
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import NumericsError, ops
from erniecore.api.layers import filled
from erniecore.api.quantizer import StoredWeight
from erniecore_ccq import clusters, words
from erniecore_ccq.schemes import CLUSTERS, GROUP, ROWS, WORDS, CodeScheme

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class CodeMatrix(ops.QuantizedMatrix):
    """A weight [.., I, O] of codes: ``qweight`` is ``quant_weight``, ``scales`` is ``super_scale``, ``others`` the rest."""

    rows: int
    others: Mapping[str, Tensor]

    @property
    def inputs(self) -> int:
        """The number of inputs, I."""
        return self.rows

    def part(self, start: int, stop: int) -> CodeMatrix:
        """Outputs ``start`` to ``stop``."""
        return self._each(lambda t: t[..., start:stop], stop - start)

    def of(self, experts: list[int]) -> CodeMatrix:
        """Some experts of a stack, in that order."""
        index = paddle.to_tensor(experts, "int64")
        return self._each(lambda t: paddle.gather(t, index), self.outputs)

    def dequantize(self) -> Tensor:
        """W' transposed, float32 [.., O, I]; new."""
        w = _DECODERS[self.quant_dtype](self)[..., : self.rows, :]
        last = w.ndim - 1
        return w.transpose([*range(last - 1), last, last - 1])

    def _each(self, change: Callable[[Tensor], Tensor], outputs: int) -> CodeMatrix:
        others = {name: change(tensor) for name, tensor in self.others.items()}
        qweight, scales = change(self.qweight), change(self.scales)
        return replace(self, qweight=qweight, scales=scales, others=others, outputs=outputs)


def _from_words(weight: CodeMatrix) -> Tensor:
    """[.., 64 G, O]."""
    *stack, rows, outputs = weight.qweight.shape
    grouped = weight.qweight.astype("int32").reshape([*stack, rows // words.WORDS, words.WORDS, outputs]) & _int(0xFFFF)
    low, last = grouped[..., :-1, :], grouped[..., -1:, :]
    shifts = paddle.to_tensor(words.SHIFTS, "int32").reshape([-1, 1])
    windows = paddle.bitwise_right_shift(low.unsqueeze(-2), shifts) & _int(7)
    windows = windows.reshape([*stack, rows // words.WORDS, GROUP - 1, outputs])
    values = paddle.concat([windows, paddle.bitwise_right_shift(last, _int(13))], axis=-2).astype("float32") - 4.0
    scales = (last & _int(words.MOST)).astype("float32") * weight.scales.unsqueeze(-2).unsqueeze(-2)
    return (values * scales).reshape([*stack, -1, outputs])


def _from_clusters(weight: CodeMatrix) -> Tensor:
    """[.., 64 G, O]."""
    *stack, rows, outputs = weight.qweight.shape
    scale, zero, pairs = (weight.others[name] for name in ("code_scale", "code_zp", "weight_scale"))
    code = paddle.floor(weight.qweight.astype("float32") * scale.unsqueeze(-2) + zero.unsqueeze(-2) + 0.5)
    shifts = paddle.to_tensor(clusters.SHIFTS, "int32").reshape([-1, 1])
    windows = paddle.bitwise_right_shift(code.astype("int32").unsqueeze(-2), shifts) & _int(63)
    values = windows.astype("float32").reshape([*stack, rows // 16, GROUP, outputs]) - 32.0
    wide = pairs.astype("int32").unsqueeze(-2)
    local = paddle.concat([paddle.bitwise_right_shift(wide, _int(4)), wide & _int(15)], axis=-2)
    local = local.reshape([*stack, -1, 1, outputs])[..., : rows // 16, :, :].astype("float32")
    return (values * (local * weight.scales.unsqueeze(-2).unsqueeze(-2))).reshape([*stack, -1, outputs])


def _encode_words(weight: NDArray[np.float32]) -> Arrays:
    qweight, scales = words.encode(weight)
    return {"quant_weight": qweight.view(np.int16), "super_scale": scales}


def _encode_clusters(weight: NDArray[np.float32]) -> Arrays:
    return clusters.encode(weight)._asdict()


def _int(value: int) -> Tensor:
    return paddle.to_tensor(value, "int32")


_DECODERS: Mapping[str, Callable[[CodeMatrix], Tensor]] = {WORDS: _from_words, CLUSTERS: _from_clusters}
_ENCODERS: Mapping[str, Callable[[NDArray[np.float32]], Arrays]] = {WORDS: _encode_words, CLUSTERS: _encode_clusters}


class CodeWeight(PackedWeight):
    """Codes and scales of one weight, [I, O] or [E, I, O]."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight, as much as is here: inputs are cut by whole groups, or not at all."""
        *stack, rows, outputs = self.quant_weight.shape
        return (*stack, min(self._inputs, rows // ROWS[self.scheme.quant_dtype] * GROUP), outputs)

    def shard_axes(self, axis: int, count: int) -> dict[str, int]:
        """Part of the protocol ``ShardableWeights.shard_weight``."""
        whole, last = self.shape, len(self.shape) - 1
        names = [name for name, _ in self.named_buffers()]
        if axis != last - 1:
            return dict.fromkeys(names, axis)
        each, unit = whole[axis] // count, GROUP * (1 if self.scheme.quant_dtype == WORDS else 2)
        if each % unit:
            raise ValueError(f"{unit} inputs share what is stored, and {each} of {whole[axis]} would be here")
        return {name: axis for name in names if name in ("quant_weight", "weight_scale")}

    def store(self, weight: Tensor, where: str) -> None:
        """Search the codes, one expert at a time. Raises ``NumericsError`` for values that are not finite."""
        array, self._inputs = filled(weight).detach().astype("float32").numpy(), int(weight.shape[-2])
        if not np.isfinite(array).all():
            count = int((~np.isfinite(array)).sum())
            raise NumericsError("a weight that is not finite cannot be quantized", where=where, found=f"{count} values")
        encode = _ENCODERS[self.scheme.quant_dtype]
        found = [encode(one) for one in array] if array.ndim == 3 else [encode(array)]
        for name in found[0]:
            whole = np.stack([one[name] for one in found]) if array.ndim == 3 else found[0][name]
            self.register_buffer(name, paddle.to_tensor(np.ascontiguousarray(whole)))

    @property
    def matrix(self) -> CodeMatrix:
        """The weight as operators take it."""
        others = {name: t for name, t in self.named_buffers() if name not in ("quant_weight", "super_scale")}
        quant_dtype, inputs, outputs = self.scheme.quant_dtype, self.shape[-2], self.shape[-1]
        return CodeMatrix(self.quant_weight, self.super_scale, quant_dtype, GROUP, outputs, inputs, others)

    def stored_weight(self) -> StoredWeight:
        """What is stored, for exporters: a form that only we read."""
        return StoredWeight(self.scheme.quant_dtype, self.quant_weight, self.super_scale, GROUP)


class CodeLinear(CodeWeight, PackedLinear):
    """y = x W' + b."""


class CodeExperts(PackedExperts):
    """Routed experts; some of their matrices may be integers."""

    def packed(self, base: Any, name: str, scheme: Scheme, where: str) -> nn.Layer:
        """By what the scheme is."""
        return (CodeWeight if isinstance(scheme, CodeScheme) else PackedWeight)(getattr(base, name), scheme, where)


def _linear(base: nn.Linear, scheme: Scheme, where: str) -> nn.Layer:
    return (CodeLinear if isinstance(scheme, CodeScheme) else PackedLinear)(base, scheme, where)


KINDS = Kinds(_linear, CodeExperts)
