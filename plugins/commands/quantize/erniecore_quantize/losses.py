"""Quantization error: of every packed weight against its original, and of the KV cache; the size of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore.api.parallel import PackedLayer
from erniecore.api.quantizer import MeasuredLayer

if TYPE_CHECKING:
    from paddle import Tensor

#: positions of the KV cache whose bytes are counted
_POSITIONS = 8


class Loss(NamedTuple):
    """Quantization error of one weight: signal-to-noise ratio in dB (infinite: exact), largest absolute error;
    ``output_db``: the ratio of the layer's output on the calibration data, where the quantizer measured it."""

    name: str
    shape: tuple[int, ...]
    sqnr_db: float
    largest_error: float
    output_db: float | None = None


class CacheLoss(NamedTuple):
    """Error and size of a quantized KV cache.

    Attributes:
        form, static: as the codec says. layers: part (``keys``, ``values``) -> signal to noise in dB per layer, on the
            calibration data. bytes_per_token, plain_bytes_per_token: of the cache's buffers, quantized and unquantized.
    """

    quant_dtype: str
    static: bool
    layers: Mapping[str, Sequence[float]]
    bytes_per_token: float
    plain_bytes_per_token: float


def losses(model: Any, before: Mapping[str, Tensor]) -> list[Loss]:
    """Quantization error of every packed weight of ``model`` against ``before`` (parameter -> original), the worst first."""
    found = [weight.loss(before[weight.name]) for weight in packed_weights(model)]
    return sorted(found, key=lambda loss: loss.sqnr_db)


class PackedWeight(NamedTuple):
    """A packed weight ``name`` of a model, which ``layer`` has as ``parameter``."""

    name: str
    layer: PackedLayer
    parameter: str

    def loss(self, weight: Tensor) -> Loss:
        """Its quantization error against the original ``weight``, which is not looked at where packing has measured it."""
        from erniecore.api import ops
        from erniecore.api.layers import borrowed

        error = self.layer.measured_error(self.parameter) if isinstance(self.layer, ops.MeasuredRounding) else None
        if error is None:
            with borrowed([weight]):
                error = ops.RoundingError.between_tensors(weight, self.layer.dequantized(self.parameter))
        ratio, largest = error.sqnr_db, error.largest
        return Loss(self.name, tuple(weight.shape), ratio, largest, _measured(self.layer).get(self.parameter))


def packed_weights(model: Any) -> list[PackedWeight]:
    """The packed weights of ``model``."""
    return [
        PackedWeight(f"{name}.{parameter}", layer, parameter)
        for name, layer in model.named_sublayers()
        if isinstance(layer, PackedLayer)
        for parameter in layer.packed_shapes()
    ]


def cache_loss(model: Any, calibrated: Any = None) -> CacheLoss | None:
    """Error and size of the quantized KV cache of ``model``, measured on its buffers; None where it is not quantized.
    ``calibrated``: the model that was calibrated, where ``model`` was read from files."""
    import paddle
    from erniecore_generation.cache import StaticCache

    from erniecore.api.layers import borrowed_on_use
    from erniecore.api.model_files import codec_of

    codec = codec_of(model)
    if codec is None:
        return None
    sizes = []
    for chosen in (codec, None):
        cache = StaticCache(int(model.architecture["num_hidden_layers"]), _POSITIONS, chosen)
        with paddle.no_grad(), borrowed_on_use(model):
            model.features(paddle.zeros([1, _POSITIONS], dtype="int64"), cache=cache)
        sizes.append(cache.num_bytes / _POSITIONS)
    return CacheLoss(codec.quant_dtype, codec.static, _measured(codec_of(calibrated or model)), *sizes)


def _measured(thing: Any) -> Any:
    """What was measured on calibration data, of a packed layer or of a codec; nothing elsewhere."""
    return thing.measured if isinstance(thing, MeasuredLayer) else {}
