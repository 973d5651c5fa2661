"""The plugin objects: tensor-wise FP8 with fixed input scales, FP8 by blocks, integers. One implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from erniecore_weight_only.schemes import Rule, Scheme

from erniecore.api import ConfigError, UsageError, hookimpl
from erniecore.api.quantizer import QuantizerCapability, QuantizerPlugin
from erniecore_fp8_qat.config import BlockConfig, Fp8Config, IntConfig, QatConfig


class _Fp8(QuantizerPlugin):
    """Trains the weights themselves: rounded in each forward pass, updated unrounded."""

    #: ``trainable``: weights stay trainable parameters, so that a run needs no adapter and leaves codes beside ``model/``
    capabilities = frozenset({QuantizerCapability.TRAIN, QuantizerCapability.EXPORT, QuantizerCapability.TRAINABLE})

    def recipe(self, config: Any, width: int) -> Any:
        """How a layer with inputs of this width computes."""
        raise NotImplementedError

    def rules(self, config: Fp8Config) -> list[Rule]:
        """The rules of ``layers`` and ``ignore``, which wins."""
        usual = type(config).model_fields
        return [
            Rule("layers", config.layers, Scheme("e4m3"), usual["layers"].default),
            Rule("ignore", config.ignore, None, usual["ignore"].default),
        ]

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """All weights are trained, and a rank has what a gradient's scale is of."""
        if settings.adapter is not None:
            message = (
                f"{self.name} trains the weights themselves: leave the adapter out, or train it beside wint8 or nf4"
            )
            raise ConfigError.at("adapter", message)
        for key, reason in settings.quantizer.scales_of_rows().items():
            if settings.parallel.degree("context") > 1:
                message = f"with parallel.context no rank has {reason}: set quantizer.{key}=exact"
                raise ConfigError.at(f"quantizer.{key}", message)

    @hookimpl
    def ernie_quantize_model(self, config: Any, model: Any, phase: str) -> Any:
        """``train``: rounding in the forward pass. ``export``: codes, with the input scales that were trained."""
        if phase not in ("train", "export"):
            raise UsageError("unknown phase", found=phase, expected="train or export")
        from functools import partial

        from erniecore_fp8_qat import convert

        rules, make = self.rules(config), partial(self.recipe, config)
        if phase == "export":
            return convert.to_packed(model, rules, make)
        return convert.to_qat(model, rules, make, *config.scale_schedule())

    @hookimpl
    def ernie_step_end(self, run: Any, metrics: Mapping[str, float]) -> None:
        """Input scales move once per step, alike on all ranks."""
        from erniecore_fp8_qat.scales import end_step

        end_step(run.model, run.ranks, applied=not metrics.get("skipped"))


class QatPlugin(_Fp8):
    """Tensor-wise FP8, ERNIEKit's ``compute_type: fp8``."""

    name = "fp8-qat"
    summary = "Training in FP8 (E4M3, a scale per tensor, Hadamard), for servers with static W8A8"
    Config = QatConfig
    min_sqnr_db = 17.0
    needs = frozenset({"fp8"})

    def recipe(self, config: QatConfig, width: int) -> Any:
        """The recipe with tensor-wise scales."""
        from erniecore_fp8_qat.recipes import TensorWise
        from erniecore_fp8_qat.rounding import hadamard_block

        block = hadamard_block(config.hadamard_block, width)
        return TensorWise(block, config.input_gradient, config.weight_gradient, config.fused_scales)


class _Integers(_Fp8):
    """Integer weights and inputs, by the machinery of FP8 (arXiv:1712.05877, section 3, without its affine zero points)."""

    Config = IntConfig
    bits: ClassVar[int]

    def recipe(self, config: IntConfig, width: int) -> Any:
        """The recipe with a scale per output."""
        from erniecore_fp8_qat.recipes import Integers
        from erniecore_fp8_qat.rounding import hadamard_block

        return Integers(self.bits, hadamard_block(config.hadamard_block, width))


class W8A8Plugin(_Integers):
    """Eight bits for both."""

    name, bits = "w8a8-qat", 8
    summary = "Quantization-aware training in int8: weight scales per output, one activation scale per layer"
    min_sqnr_db = 30.0


class W4A8Plugin(_Integers):
    """Four bits for weights."""

    name, bits = "w4a8-qat", 4
    summary = "Quantization-aware training with int4 weights and int8 activations"
    min_sqnr_db = 10.0


class BlockPlugin(_Fp8):
    """The recipe of DeepSeek-V3 (arXiv:2412.19437, section 3.3)."""

    name = "fp8-block"
    summary = "Training in FP8 (E4M3) by blocks of 128 with scales that are powers of two"
    Config = BlockConfig
    min_sqnr_db = 17.0
    needs = frozenset({"fp8"})

    def recipe(self, config: BlockConfig, width: int) -> Any:
        """The recipe with block-wise scales."""
        from erniecore_fp8_qat.recipes import BlockWise

        return BlockWise(config.weight_gradient)


qat, block = QatPlugin(), BlockPlugin()
w8a8, w4a8 = W8A8Plugin(), W4A8Plugin()
