"""KV-cache quantization: a ``CacheCodec`` with scales from calibration data or from each position. A model with it computes with
dequantized keys and values also where it has no cache, so that its loss includes the quantization error.

    int8   s = max|x| / 127   int8                    int4   s = max|x| / 7    two values per byte, along the head
    fp8    s = max|x| / 448   bits of E4M3, uint8

Keys are quantized after the rotary embedding, as a cache stores them. Letters: B rows, S new and K stored positions, N heads,
D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_fp8_qat.rounding import from_bits, to_bits
from erniecore_weight_only.codec import pack
from numpy.typing import NDArray
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import NumericsError, UsageError, ops
from erniecore.api.layers import borrowed_on_use, child, derived, give, wait_for
from erniecore_ptq.chain import Chain, States
from erniecore_ptq.rounding import decibels, signal_and_noise
from erniecore_ptq.sweep import Sweep, Work

#: the largest number that is left whole, in scales
TOP = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
KEYS_AND_VALUES = ("keys", "values")


class KVCacheCodec(nn.Layer):  # type: ignore[misc]
    """See ``erniecore.api.CacheCodec``. Static scales are ``<part>_scale`` float32 [layers, N, D], one per channel of a head
    (0: not calibrated yet); dynamic ones are float32 [B, S, N, 1], stored with the values. Layers beyond ``layers``, those of
    multi-token prediction, are not quantized.

    Attributes:
        measured: part -> signal to noise in dB per layer, after :func:`calibrate`.
    """

    def __init__(self, quant_dtype: str, shape: tuple[int, int, int], *, static: bool) -> None:
        """``shape``: layers, heads, head size."""
        super().__init__()
        if quant_dtype == "int4" and shape[2] % 2:
            raise UsageError("two int4 values share a byte", where="quantizer.cache", found=f"heads of {shape[2]}",
                             expected="an even size", fix="take cache=int8")  # fmt: skip
        self.quant_dtype, self.static, self.layers, self._known = quant_dtype, static, shape[0], False
        self.measured: dict[str, list[float]] = {}
        for part in KEYS_AND_VALUES if static else ():
            self.register_buffer(f"{part}_scale", paddle.zeros(shape))

    def encode(self, layer: int, part: str, x: Tensor) -> tuple[Tensor, ...]:
        """[B, S, N, D] -> quantized values, and dynamic scales. Raises ``UsageError`` where static scales are not calibrated."""
        if layer >= self.layers:
            return (x,)
        wide = x.detach().astype("float32")
        if self.static:
            if not self.known:
                raise UsageError("the scales of this KV cache are not calibrated", where=f"layer {layer}, {part}",
                                 fix="calibrate them: ernie quantize MODEL --to kv-cache --calib FILE --out DIR")  # fmt: skip
            return (_quantize(wide / self._scale(layer, part), self.quant_dtype),)
        scale = _scales(wide.abs().max(axis=-1, keepdim=True), self.quant_dtype)
        return _quantize(wide / scale, self.quant_dtype), scale

    def decode(self, layer: int, part: str, stored: tuple[Tensor, ...], like: Tensor) -> Tensor:
        """[B, K, N, D]."""
        if layer >= self.layers:
            return stored[0]
        scale = self._scale(layer, part) if self.static else stored[1]
        return (_dequantize(stored[0], self.quant_dtype) * scale).astype(like.dtype)

    def rounded(self, layer: int, part: str, x: Tensor) -> Tensor:
        """``x``, quantized and dequantized; static scales that are not calibrated yet are computed from ``x``."""
        if self.static and not self.known:
            wide = x.detach().astype("float32")
            scale = _scales(wide.abs().max(axis=[0, 1]), self.quant_dtype)
            return (_dequantize(_quantize(wide / scale, self.quant_dtype), self.quant_dtype) * scale).astype(x.dtype)
        return self.decode(layer, part, self.encode(layer, part, x), x)

    @property
    def known(self) -> bool:
        """Whether static scales have been calibrated."""
        self._known = self._known or bool((self.keys_scale[0] > 0).all())
        return self._known

    def largest(self, layer: int, part: str) -> Tensor:
        """[N, D]; static scales only."""
        return self._scale(layer, part) * TOP[self.quant_dtype]

    def _scale(self, layer: int, part: str) -> Tensor:
        return getattr(self, f"{part}_scale")[layer]


class _RoundingCache:
    """A cache for one pass over whole rows that stores nothing and returns rounded keys and values."""

    length = 0

    def __init__(self, codec: KVCacheCodec) -> None:
        self.codec = codec

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, quantized and dequantized."""
        return self.codec.rounded(layer, KEYS_AND_VALUES[0], key), self.codec.rounded(layer, KEYS_AND_VALUES[1], value)


class _AbsMaxCache:
    """A cache that stores nothing and records the largest absolute value of every channel."""

    length = 0

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], Tensor] = {}

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values unchanged."""
        for part, x in zip(KEYS_AND_VALUES, (key, value), strict=True):
            most = x.detach().astype("float32").abs().max(axis=[0, 1])
            known = self.found.get((layer, part))
            self.found[layer, part] = most if known is None else paddle.maximum(known, most)
        return key, value


class _ErrorCache(_RoundingCache):
    """A cache that stores nothing and accumulates the quantization error of keys and values."""

    def __init__(self, codec: KVCacheCodec) -> None:
        super().__init__(codec)
        self.sums: dict[tuple[int, str], NDArray[np.float64]] = {}

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values unchanged."""
        for part, x, y in zip(KEYS_AND_VALUES, (key, value), super().update(layer, key, value), strict=True):
            self.sums[layer, part] = self.sums.get((layer, part), np.zeros(2)) + signal_and_noise(x, y)
        return key, value


def attach(model: nn.Layer, quant_dtype: str, *, static: bool, shape: tuple[int, int, int] | None = None) -> nn.Layer:
    """``model`` with a codec of ``quant_dtype``, not calibrated yet; a model that has this codec already is returned unchanged.
    ``shape``: see :func:`shape_of`, where it is known.

    Raises ``UsageError`` for a model with another codec, or whose head size does not fit."""
    found = child(model, "cache_codec")
    if found is not None:
        if (found.quant_dtype, found.static) != (quant_dtype, static):
            raise UsageError(
                "this model's KV cache is already quantized with another scheme",
                found=found.quant_dtype,
                expected=quant_dtype,
                fix="quantize the original model",
            )
        return model
    model.add_sublayer("cache_codec", KVCacheCodec(quant_dtype, shape or shape_of(model), static=static))
    return derived(model, _Rounding)


def calibrate(model: nn.Layer, sweep: Sweep) -> None:
    """The static scales of the codec of ``model`` wait for the largest values of the data of ``sweep``, which also measures the
    error there."""
    sweep.work = CacheWork(sweep.work, model.cache_codec)
    wait_for(model.cache_codec.buffers(), partial(sweep.reach, len(sweep.chain.names)))


class CacheWork:
    """See ``sweep.Work``: the largest keys and values of each layer, beside the ``inner`` work; the layers compute with keys and
    values as they are. Raises ``NumericsError`` for some that are not finite."""

    def __init__(self, inner: Work, codec: KVCacheCodec) -> None:
        self.inner, self.codec, self.needs_original = inner, codec, inner.needs_original
        scales = [codec.layers, 1, 2] if not codec.static else codec.keys_scale.shape
        self._own = KVCacheCodec(codec.quant_dtype, tuple(scales), static=codec.static)
        self._states: States = []

    def original(self, chain: Chain, place: int) -> None:
        """The inner work is told."""
        self.inner.original(chain, place)

    def quantize(self, chain: Chain, place: int, names: Sequence[str]) -> None:
        """The inner work quantizes."""
        self.inner.quantize(chain, place, names)

    def passed(self, chain: Chain, place: int, *, stored: bool) -> None:
        """Largest keys and values of the layer, and what their rounding loses."""
        self.inner.passed(chain, place, stored=stored)
        self._calibrate(chain, place)

    def end(self, chain: Chain) -> None:
        """The codec gets its scales."""
        self.inner.end(chain)
        if not chain.names:  # whole passes
            self._calibrate(chain, 0)
        own = dict(self._own.named_buffers())
        for name, buffer in self.codec.named_buffers():
            give(buffer, own[name])

    def _calibrate(self, chain: Chain, place: int) -> None:
        largest, lost = _AbsMaxCache(), _ErrorCache(self._own)
        chain.through(place, self._states, cache=largest)
        for (layer, part), most in largest.found.items():
            if not bool(paddle.isfinite(most).all()):
                raise NumericsError(f"the calibration data makes {part} that are not finite", where=f"layer {layer}")
            if self._own.static and layer < self._own.layers:
                getattr(self._own, f"{part}_scale")[layer] = _scales(most, self._own.quant_dtype)
        self._states = chain.through(place, self._states, cache=lost)
        for (layer, part), sums in sorted(lost.sums.items()):
            if layer < self._own.layers:
                self.codec.measured.setdefault(part, []).append(decibels(*sums))


def shape_of(model: nn.Layer) -> tuple[int, int, int]:
    """Layers, heads and head size, observed in the first layer of a pass over two tokens."""
    found: list[int] = []
    training = model.training
    model.eval()
    with borrowed_on_use(model), suppress(_Shaped), paddle.no_grad():
        model.features(paddle.zeros([1, 2], dtype="int64"), cache=_ShapeCache(found))
    model.train() if training else model.eval()
    heads, size = found
    return int(model.architecture["num_hidden_layers"]), heads, size


class _Shaped(Exception):
    """Ends a pass once the shape is known."""


class _ShapeCache:
    """A cache that notes the shape of the first keys and ends the pass."""

    length = 0

    def __init__(self, found: list[int]) -> None:
        self.found = found

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Note the shape of ``key`` [B, S, N, D]; ends the pass with ``_Shaped``."""
        self.found[:] = key.shape[2:]
        raise _Shaped


class _Rounding:
    """Mixin before a model's class: passes without a cache use quantized and dequantized keys and values, too."""

    cache_codec: KVCacheCodec

    def features(self, input_ids: Tensor, *, cache: Any = None, **masks: Tensor | None) -> Any:
        """Hidden states, computed with rounded keys and values; see ``CausalLM``."""
        if cache is None:
            _check_rows(masks)
            cache = _RoundingCache(self.cache_codec)
        return super().features(input_ids, cache=cache, **masks)  # type: ignore[misc]


def _check_rows(masks: dict[str, Tensor | None]) -> None:
    """Raises ``UsageError`` for packed samples without row indices: with a cache, models do not detect them by positions."""
    positions = masks.get("position_ids")
    told = any(masks.get(name) is not None for name in ("attention_mask", "startend_row_indices"))
    if positions is None or told or positions.shape[-1] < 2:
        return
    if bool((positions[..., 1:] <= positions[..., :-1]).any()):
        raise UsageError(
            "with a quantized cache, rows of several samples need startend_row_indices", where="position_ids"
        )


def _scales(largest: Tensor, quant_dtype: str) -> Tensor:
    scale = largest / TOP[quant_dtype]
    return paddle.where(scale > 0, scale, paddle.ones_like(scale))


def _quantize(x: Tensor, quant_dtype: str) -> Tensor:
    if quant_dtype == "fp8":
        return to_bits(ops.fp8_quantize(x, paddle.ones([1])))
    qweight = paddle.round(x).clip(-TOP[quant_dtype], TOP[quant_dtype]).astype("int8")
    return qweight if quant_dtype == "int8" else pack(qweight.unsqueeze(-1)).squeeze(-1)


def _dequantize(qweight: Tensor, quant_dtype: str) -> Tensor:
    if quant_dtype == "fp8":
        return from_bits(qweight)
    if quant_dtype == "int4":
        qweight = ops.unpack_int4(qweight.unsqueeze(-1), 2 * qweight.shape[-1]).squeeze(-1)
    return qweight.astype("float32")
