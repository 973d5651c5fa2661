"""Keys and values as codes while a model decodes: a ``CacheCodec`` with scales from calibration data or from each position,
and a model that computes with what its codes stand for also where it has no cache, so that a loss says what they cost.

    int8   s = max|x| / 127   codes int8              int4   s = max|x| / 7    two codes to a byte, along the head
    fp8    s = max|x| / 448   bits of E4M3, uint8

Keys are those that a cache gets, so after the rotary positions. Letters: B rows, S new and K stored positions, N heads, D head
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_fp8_qat.rounding import from_codes, to_codes
from erniecore_weight_only.codec import pack
from numpy.typing import NDArray
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import NumericsError, UsageError, ops
from erniecore_ptq.rounding import decibels

#: the largest number that is left whole, in scales
TOP = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
PARTS = ("keys", "values")


class Codec(nn.Layer):  # type: ignore[misc]
    """See ``erniecore.api.CacheCodec``. Static scales are ``<part>_scale`` float32 [layers, N, D], one per channel of a head;
    0: not known yet;
    dynamic ones float32 [B, S, N, 1] beside the codes. What a layer beyond ``layers`` stores (prediction ahead) stays as it is.

    Attributes:
        measured: part -> signal to noise in dB per layer, after :func:`calibrate`.
    """

    def __init__(self, form: str, shape: tuple[int, int, int], *, static: bool) -> None:
        """``shape``: layers, heads, head size."""
        super().__init__()
        if form == "int4" and shape[2] % 2:
            raise UsageError("two codes share a byte", where="quantizer.cache", found=f"heads of {shape[2]}",
                             expected="an even size", fix="take cache=int8")  # fmt: skip
        self.form, self.static, self.layers, self._known = form, static, shape[0], False
        self.measured: dict[str, list[float]] = {}
        for part in PARTS if static else ():
            self.register_buffer(f"{part}_scale", paddle.zeros(shape))

    def encode(self, layer: int, part: str, x: Tensor) -> tuple[Tensor, ...]:
        """[B, S, N, D] -> codes, and scales where they are dynamic. Raises ``UsageError`` where scales are not known."""
        if layer >= self.layers:
            return (x,)
        wide = x.detach().astype("float32")
        if self.static:
            if not self.known:
                raise UsageError("the scales of this cache are not known", where=f"layer {layer}, {part}",
                                 fix="calibrate them: ernie quantize MODEL --to kv-cache --calib FILE")  # fmt: skip
            return (_codes(wide / self._scale(layer, part), self.form),)
        scale = _scales(wide.abs().max(axis=-1, keepdim=True), self.form)
        return _codes(wide / scale, self.form), scale

    def decode(self, layer: int, part: str, held: tuple[Tensor, ...], like: Tensor) -> Tensor:
        """[B, K, N, D]."""
        if layer >= self.layers:
            return held[0]
        scale = self._scale(layer, part) if self.static else held[1]
        return (_numbers(held[0], self.form) * scale).astype(like.dtype)

    def rounded(self, layer: int, part: str, x: Tensor) -> Tensor:
        """What the codes of ``x`` stand for; static scales that are not known yet are those that fit ``x``."""
        if self.static and not self.known:
            wide = x.detach().astype("float32")
            scale = _scales(wide.abs().max(axis=[0, 1]), self.form)
            return (_numbers(_codes(wide / scale, self.form), self.form) * scale).astype(x.dtype)
        return self.decode(layer, part, self.encode(layer, part, x), x)

    @property
    def known(self) -> bool:
        """Whether static scales are there."""
        self._known = self._known or bool((self.keys_scale[0] > 0).all())
        return self._known

    def largest(self, layer: int, part: str) -> Tensor:
        """[N, D]; static scales only."""
        return self._scale(layer, part) * TOP[self.form]

    def _scale(self, layer: int, part: str) -> Tensor:
        return getattr(self, f"{part}_scale")[layer]


class _Passing:
    """A cache for one pass over whole rows, of which nothing stays."""

    length = 0

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """What the codes stand for."""
        return self.codec.rounded(layer, PARTS[0], key), self.codec.rounded(layer, PARTS[1], value)


class _Largest:
    """A cache that only looks: the largest size of every channel."""

    length = 0

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], Tensor] = {}

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """As they came."""
        for part, x in zip(PARTS, (key, value), strict=True):
            most = x.detach().astype("float32").abs().max(axis=[0, 1])
            known = self.found.get((layer, part))
            self.found[layer, part] = most if known is None else paddle.maximum(known, most)
        return key, value


class _Lost(_Passing):
    """A cache that compares what came with what its codes stand for."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        self.sums: dict[tuple[int, str], NDArray[np.float64]] = {}

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """As they came."""
        for part, x, y in zip(PARTS, (key, value), super().update(layer, key, value), strict=True):
            wide = x.astype("float64")
            pair = [float((t**2).sum()) for t in (wide, y.astype("float64") - wide)]
            self.sums[layer, part] = self.sums.get((layer, part), np.zeros(2)) + pair
        return key, value


def attach(model: nn.Layer, form: str, *, static: bool) -> nn.Layer:
    """``model`` with a codec of ``form``, its scales not known yet; one that has it already stays as it is.

    Raises ``UsageError`` for a model with another codec, or whose keys cannot be stored so."""
    found = getattr(model, "cache_codec", None)
    if found is not None:
        if (found.form, found.static) != (form, static):
            raise UsageError("this model's cache is quantised in another way already", found=found.form, expected=form,
                             fix="quantise the original model")  # fmt: skip
        return model
    model.add_sublayer("cache_codec", Codec(form, _shape(model), static=static))
    # another class, because a bound method in the place of `features` would stay bound when the model is copied
    model.__class__ = _rounding(type(model))  # type: ignore[arg-type]
    return model


def calibrate(model: nn.Layer, batches: Sequence[NDArray[np.int64]]) -> None:
    """Static scales of a model with a codec, from the largest sizes in ``batches``, and what is lost there.

    Raises ``NumericsError`` for keys or values that are not finite."""
    codec, largest = model.cache_codec, _Largest()
    _pass(model, largest, batches)
    for (layer, part), most in largest.found.items():
        if not bool(paddle.isfinite(most).all()):
            raise NumericsError(f"the calibration data makes {part} that are not finite", where=f"layer {layer}")
        if codec.static and layer < codec.layers:
            getattr(codec, f"{part}_scale")[layer] = _scales(most, codec.form)
    lost = _Lost(codec)
    _pass(model, lost, batches)
    for part in PARTS:
        codec.measured[part] = [decibels(*lost.sums[layer, part]) for layer in range(codec.layers)]


def _pass(model: nn.Layer, cache: Any, batches: Sequence[NDArray[np.int64]]) -> None:
    with paddle.no_grad():
        for ids in batches:
            model.features(paddle.to_tensor(ids), cache=cache)


def _shape(model: nn.Layer) -> tuple[int, int, int]:
    """Layers, heads and head size, from two tokens."""
    seen, training = _Largest(), model.training
    model.eval()
    _pass(model, seen, [np.zeros([1, 2], np.int64)])
    model.train() if training else model.eval()
    heads, size = seen.found[0, "keys"].shape
    return len(seen.found) // 2, heads, size


class _Rounding:
    """Before a model's class: what is computed without a cache is computed with what codes stand for."""

    cache_codec: Codec

    def features(self, input_ids: Tensor, *, cache: Any = None, **masks: Tensor | None) -> Any:
        """See ``CausalLM``."""
        if cache is None:
            _check_rows(masks)
            cache = _Passing(self.cache_codec)
        return super().features(input_ids, cache=cache, **masks)  # type: ignore[misc]


@lru_cache
def _rounding(kind: type) -> type:
    return type(kind.__name__, (_Rounding, kind), {})


def _check_rows(masks: dict[str, Tensor | None]) -> None:
    """Models tell packed samples by positions that restart only where there is no cache."""
    positions = masks.get("position_ids")
    told = any(masks.get(name) is not None for name in ("attention_mask", "startend_row_indices"))
    if positions is None or told or positions.shape[-1] < 2:
        return
    if bool((positions[..., 1:] <= positions[..., :-1]).any()):
        raise UsageError(
            "with a quantised cache, rows of several samples need startend_row_indices", where="position_ids"
        )


def _scales(largest: Tensor, form: str) -> Tensor:
    scale = largest / TOP[form]
    return paddle.where(scale > 0, scale, paddle.ones_like(scale))


def _codes(x: Tensor, form: str) -> Tensor:
    if form == "fp8":
        return to_codes(ops.fp8_quantize(x, paddle.ones([1])))
    codes = paddle.round(x).clip(-TOP[form], TOP[form]).astype("int8")
    return codes if form == "int8" else pack(codes.unsqueeze(-1)).squeeze(-1)


def _numbers(codes: Tensor, form: str) -> Tensor:
    if form == "fp8":
        return from_codes(codes)
    if form == "int4":
        codes = ops.unpack_halves(codes.unsqueeze(-1), 2 * codes.shape[-1]).squeeze(-1)
    return codes.astype("float32")
