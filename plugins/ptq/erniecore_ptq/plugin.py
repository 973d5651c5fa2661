"""The plugin objects: GPTQ and AWQ to integers, and FP8 with calibrated input scales. They quantise finished models
(``ernie quantize``); none of them trains.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from erniecore_fp8_qat.plugin import qat
from erniecore_weight_only.schemes import Rule, Scheme

from erniecore.api import ConfigError, Plugin, UsageError, hookimpl
from erniecore_ptq.config import AwqConfig, Fp8Config, GptqConfig, IntConfig, PtqConfig


class _Ptq(Plugin):
    """After training only."""

    kind = "quantizer"
    #: ``calibrate``: ``ernie_calibrate_model`` is there, and ``ernie quantize`` asks for data
    capabilities = frozenset({"export", "calibrate"})

    def scheme(self, config: Any) -> Scheme:
        """The stored form."""
        raise NotImplementedError

    def rules(self, config: PtqConfig) -> list[Rule]:
        """``ignore`` wins."""
        usual = type(config).model_fields
        return [
            Rule("layers", config.layers, self.scheme(config), usual["layers"].default),
            Rule("ignore", config.ignore, None, usual["ignore"].default),
        ]

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """No quantizer of runs."""
        message = f"{self.name} quantises finished models: ernie quantize MODEL --to {self.name} --calib FILE --out DIR"
        raise ConfigError.at("quantizer", message)


class _Integers(_Ptq):
    """Codes of ``weight_only``, chosen with data."""

    def scheme(self, config: IntConfig) -> Scheme:
        """Four or eight bits."""
        return Scheme(f"int{config.bits}", config.group_size)

    @hookimpl
    def ernie_quantize_model(self, config: Any, model: Any, phase: str) -> Any:
        """``export``: the layers, rounded to nearest; a directory's codes are read into them."""
        if phase != "export":
            raise UsageError("unknown phase", found=phase, expected="export")
        from erniecore_ptq import calibrate

        return calibrate.structure(model, self.rules(config), self.kinds())

    @hookimpl
    def ernie_calibrate_model(self, config: Any, model: Any, batches: Any) -> Any:
        """Codes fitted to what the layers see."""
        from erniecore_ptq import calibrate

        return calibrate.to_integers(model, self.rules(config), batches, self.method(config), self.kinds())

    def kinds(self) -> tuple[type, type]:
        """Of linear layers and stacked experts."""
        raise NotImplementedError

    def method(self, config: Any) -> Any:
        """How a matrix is rounded."""
        raise NotImplementedError


class GptqPlugin(_Integers):
    """arXiv:2210.17323."""

    name = "gptq"
    summary = "After training: 4 or 8 bits, the error of each input made up for by the others (GPTQ)"
    Config = GptqConfig
    min_sqnr_db = 10.0

    def kinds(self) -> tuple[type, type]:
        """Those of ``weight_only``."""
        from erniecore_ptq.calibrate import PLAIN

        return PLAIN

    def method(self, config: GptqConfig) -> Any:
        """GPTQ."""
        from erniecore_ptq.calibrate import by_gptq

        return by_gptq(config)


class AwqPlugin(_Integers):
    """arXiv:2306.00978."""

    name = "awq"
    summary = "After training: 4 or 8 bits, inputs scaled so that those with large activations lose less (AWQ)"
    Config = AwqConfig
    min_sqnr_db = 10.0

    def kinds(self) -> tuple[type, type]:
        """With factors for their inputs."""
        from erniecore_ptq.calibrate import SCALED

        return SCALED

    def method(self, config: AwqConfig) -> Any:
        """AWQ."""
        from erniecore_ptq.calibrate import by_awq

        return by_awq(config)


class Fp8PtqPlugin(_Ptq):
    """The form of ``fp8-qat``, without training."""

    name = "fp8-ptq"
    summary = "After training: FP8 weights and inputs, input scales from calibration data or from each batch"
    Config = Fp8Config
    min_sqnr_db = 17.0

    def scheme(self, config: Fp8Config) -> Scheme:
        """E4M3."""
        return Scheme("e4m3")

    def recipe(self, config: Fp8Config) -> Any:
        """Width of a layer's inputs -> how it computes."""
        return partial(qat.recipe, qat.Config(hadamard_block=config.hadamard_block))

    @hookimpl
    def ernie_quantize_model(self, config: Fp8Config, model: Any, phase: str) -> Any:
        """``export``: every batch has its own input scales, until a directory's are read."""
        if phase != "export":
            raise UsageError("unknown phase", found=phase, expected="export")
        from erniecore_ptq import calibrate

        return calibrate.to_fp8(model, self.rules(config), self.recipe(config), None)

    @hookimpl
    def ernie_calibrate_model(self, config: Fp8Config, model: Any, batches: Any) -> Any:
        """Input scales from data, unless each batch is to have its own."""
        from erniecore_ptq import calibrate

        static = config.activations == "static"
        return calibrate.to_fp8(model, self.rules(config), self.recipe(config), batches if static else None)


gptq, awq, fp8 = GptqPlugin(), AwqPlugin(), Fp8PtqPlugin()
