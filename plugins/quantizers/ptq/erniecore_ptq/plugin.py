"""The plugin objects: GPTQ and AWQ to integers, FP8 and integers with calibrated input scales, and a cache of codes. They
quantize finished models (``ernie quantize``); none of them trains.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore_fp8_qat.plugin import qat
from erniecore_weight_only.plugin import wint4, wint4_8, wint8
from erniecore_weight_only.schemes import Rule, Scheme

from erniecore.api import ConfigError, UsageError, hookimpl
from erniecore.api.quantizer import QuantizerCapability, QuantizerPlugin
from erniecore_ptq.config import (
    AwqConfig,
    CacheConfig,
    EightBitConfig,
    Fp8Config,
    GptqConfig,
    InputsConfig,
    IntConfig,
    KvConfig,
    PtqConfig,
)

if TYPE_CHECKING:
    from erniecore_ptq.sweep import Sweep


class _Ptq(QuantizerPlugin):
    """After training only."""

    #: ``calibrate``: ``ernie_calibrate_model`` is there, and ``ernie quantize`` asks for data
    capabilities = frozenset({QuantizerCapability.EXPORT, QuantizerCapability.CALIBRATE, QuantizerCapability.EMPTY})

    def structure(self, config: Any, model: Any) -> Any:
        """``model`` with the layers into which a directory's codes are read."""
        raise NotImplementedError

    def calibrated(self, config: Any, model: Any, batches: Any) -> tuple[Any, Sweep]:
        """``model`` with layers that wait for codes fitted to data, and what makes them."""
        raise NotImplementedError

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """No quantizer of runs."""
        message = f"{self.name} quantizes finished models: ernie quantize MODEL --to {self.name} --calib FILE --out DIR"
        raise ConfigError.at("quantizer", message)

    @hookimpl
    def ernie_quantize_model(self, config: CacheConfig, model: Any, phase: str) -> Any:
        """``export``: the layers, without calibration; a directory's codes and scales are read into them."""
        if phase != "export":
            raise UsageError("unknown phase", found=phase, expected="export")
        return self._stored(config, self.structure(config, model))

    @hookimpl
    def ernie_calibrate_model(self, config: CacheConfig, model: Any, batches: Any) -> Any:
        """Codes and scales fitted to what the layers see; of a model without values, when they are asked for."""
        from erniecore.api.layers import fill, is_empty
        from erniecore_ptq import caching, calibrate

        calibrate.check_enough(model, [], batches)
        shape = None if config.cache == "none" else caching.shape_of(model)
        streams = any(map(is_empty, model.parameters()))
        model, sweep = self.calibrated(config, model, batches)
        if shape is not None:
            model = caching.attach(model, config.cache, static=config.cache_scales == "static", shape=shape)
            caching.calibrate(model, sweep)
        if not streams:
            sweep.reach(len(sweep.chain.names))
            fill(model)
        return model

    def _stored(self, config: CacheConfig, model: Any) -> Any:
        """``model`` with the cache that the settings ask for."""
        from erniecore_ptq import caching

        if config.cache == "none":
            return model
        return caching.attach(model, config.cache, static=config.cache_scales == "static")


class _Packing(_Ptq):
    """Some layers' weights become codes."""

    def scheme(self, config: Any) -> Scheme:
        """The quantization scheme of the weights."""
        raise NotImplementedError

    def rules(self, config: PtqConfig) -> list[Rule]:
        """The rules of ``layers`` and ``ignore``, which wins."""
        usual = type(config).model_fields
        return [
            Rule("layers", config.layers, self.scheme(config), usual["layers"].default),
            Rule("ignore", config.ignore, None, usual["ignore"].default),
        ]


class _Integers(_Packing):
    """Codes of ``weight_only``, chosen with data."""

    def scheme(self, config: IntConfig) -> Scheme:
        """Four or eight bits."""
        return Scheme(f"int{config.bits}", config.group_size)

    def structure(self, config: IntConfig, model: Any) -> Any:
        """The layers, with weights rounded to nearest."""
        from erniecore_ptq import calibrate

        return calibrate.structure(model, self.rules(config), self.kinds())

    def calibrated(self, config: IntConfig, model: Any, batches: Any) -> tuple[Any, Sweep]:
        """The model, quantized layer after layer."""
        from erniecore_ptq import calibrate

        return calibrate.to_integers(model, self.rules(config), batches, self.method(config), self.kinds())

    def kinds(self) -> tuple[type, type]:
        """Of linear layers and stacked experts."""
        raise NotImplementedError

    def method(self, config: Any) -> Any:
        """How a matrix is rounded."""
        raise NotImplementedError


class GptqPlugin(_Integers):
    """GPTQ, second-order error compensation (arXiv:2210.17323)."""

    name = "gptq"
    summary = "Post-training: 4 or 8 bits, second-order error compensation (GPTQ)"
    Config = GptqConfig
    min_sqnr_db = 10.0

    def kinds(self) -> tuple[type, type]:
        """The layer classes of ``weight_only``."""
        from erniecore_ptq.calibrate import PLAIN

        return PLAIN

    def method(self, config: GptqConfig) -> Any:
        """The rounding function of GPTQ."""
        from erniecore_ptq.calibrate import GptqRounding

        return GptqRounding(config)


class AwqPlugin(_Integers):
    """AWQ, activation-aware weight scaling (arXiv:2306.00978)."""

    name = "awq"
    summary = "Post-training: 4 or 8 bits, scales protect inputs with large activations (AWQ)"
    Config = AwqConfig
    min_sqnr_db = 10.0

    def kinds(self) -> tuple[type, type]:
        """With factors for their inputs."""
        from erniecore_ptq.calibrate import SCALED

        return SCALED

    def method(self, config: AwqConfig) -> Any:
        """The rounding function of AWQ."""
        from erniecore_ptq.calibrate import AwqRounding

        return AwqRounding(config)


class _Inputs(_Packing):
    """Inputs are rounded as well, as in training with the same form."""

    def recipe(self, config: Any) -> Any:
        """Width of a layer's inputs -> how it computes."""
        raise NotImplementedError

    def smoothing(self, config: Any) -> float:
        """See ``EightBitConfig``; 0: none."""
        return 0.0

    def structure(self, config: InputsConfig, model: Any) -> Any:
        """Every batch has its own input scales, until a directory's are read."""
        from erniecore_ptq import inputs

        return inputs.structure(model, self.rules(config), self.recipe(config), self.smoothing(config))

    def calibrated(self, config: InputsConfig, model: Any, batches: Any) -> tuple[Any, Sweep]:
        """Input scales from data, unless they are made anew each time."""
        from erniecore_ptq import inputs

        rules, recipe, static = self.rules(config), self.recipe(config), config.activations == "static"
        return inputs.calibrated(model, rules, recipe, batches, static=static, smoothing=self.smoothing(config))


class Fp8PtqPlugin(_Inputs):
    """The form of ``fp8-qat``, without training."""

    name = "fp8-ptq"
    summary = "Post-training: FP8 weights and activations, input scales from calibration data or from each batch"
    Config = Fp8Config
    min_sqnr_db = 17.0
    needs = frozenset({"fp8"})

    def scheme(self, config: Fp8Config) -> Scheme:
        """The scheme of E4M3 values."""
        return Scheme("e4m3")

    def recipe(self, config: Fp8Config) -> Any:
        """The recipe of ``fp8-qat``."""
        chosen = {"hadamard_block": config.hadamard_block, "fused_scales": config.fused_scales}
        return partial(qat.recipe, qat.Config(**chosen))


class _EightBits(_Inputs):
    """Integer weights and inputs (arXiv:2211.10438)."""

    Config = EightBitConfig
    bits: ClassVar[int]

    def scheme(self, config: EightBitConfig) -> Scheme:
        """The recipe with a scale per output."""
        return Scheme(f"int{self.bits}")

    def smoothing(self, config: EightBitConfig) -> float:
        """As it is set."""
        return config.smoothing

    def recipe(self, config: EightBitConfig) -> Any:
        """One scale for a layer's inputs, or one per token."""

        def make(width: int) -> Any:
            from erniecore_fp8_qat.recipes import Integers
            from erniecore_fp8_qat.rounding import hadamard_block

            return Integers(self.bits, hadamard_block(config.hadamard_block, width), config.activations == "dynamic")

        return make


class W8A8Plugin(_EightBits):
    """The form of ``w8a8-qat``, without training."""

    name, bits = "w8a8", 8
    summary = "Post-training: int8 weights and inputs, input scales from calibration data or from each token"
    min_sqnr_db = 25.0


class W4A8Plugin(_EightBits):
    """The form of ``w4a8-qat``, without training."""

    name, bits = "w4a8", 4
    summary = "Post-training: int4 weights and int8 inputs, input scales from calibration data or from each token"
    min_sqnr_db = 8.0


class KvCachePlugin(_Ptq):
    """The cache, alone or beside weights rounded to nearest."""

    name = "kv-cache"
    summary = "Post-training: keys and values in the cache as int8, int4 or FP8; weights as they are or wint8"
    Config = KvConfig
    min_sqnr_db = 30.0

    def structure(self, config: KvConfig, model: Any) -> Any:
        """Weights that need no data are final here."""
        if config.weights == "none":
            return model
        plugin = {one.name: one for one in (wint8, wint4, wint4_8)}[config.weights]
        return plugin.ernie_quantize_model(config=plugin.Config(), model=model, phase="export")

    def calibrated(self, config: KvConfig, model: Any, batches: Any) -> tuple[Any, Sweep]:
        """The same as :meth:`structure`, which needs no data."""
        from erniecore_ptq.calibrate import to_nearest
        from erniecore_ptq.chain import Chain

        model.eval()
        chain, originals = Chain(model, batches), dict(model.named_sublayers())
        return model, to_nearest(chain, originals, self.structure(config, model))


gptq, awq, fp8 = GptqPlugin(), AwqPlugin(), Fp8PtqPlugin()
w8a8, w4a8, kv_cache = W8A8Plugin(), W4A8Plugin(), KvCachePlugin()
