"""Quantizers with one thing wrong."""

from __future__ import annotations

from typing import Any, ClassVar

from erniecore.api import DataError, Field, UsageError, hookimpl
from erniecore.api.quantizer import QuantizerCapability, QuantizerConfig
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.changes import ToyQuantizerPlugin


class Changed(ToyQuantizerPlugin):
    """A toy quantizer whose result is changed."""

    @hookimpl
    def ernie_quantize_model(self, model: Any, phase: str) -> Any:
        from erniecore_conformance.toys.paddle_changes import fake_quantize, round_weights

        if phase not in self.capabilities:
            raise UsageError("unknown phase", found=phase)
        model = fake_quantize(model) if phase == "train" else round_weights(model)
        self.change(model, phase)
        return model

    def change(self, model: Any, phase: str) -> None:
        """Break the quantized model; overridden by mutants."""

    def linears(self, model: Any) -> list[Any]:
        """The layers that were replaced."""
        from erniecore_conformance.toys.paddle_changes import RoundedLinear

        return [layer for layer in model.sublayers() if isinstance(layer, RoundedLinear)]


class NoPhase(Changed):
    """No phase at all."""

    capabilities: ClassVar[frozenset[QuantizerCapability]] = frozenset()


class AnyPhase(ToyQuantizerPlugin):
    """Unknown phases leave the model as it was."""

    @hookimpl
    def ernie_quantize_model(self, model: Any, phase: str) -> Any:
        from erniecore_conformance.toys.paddle_changes import fake_quantize, round_weights

        phases = {"train": fake_quantize, "export": round_weights}
        return phases[phase](model) if phase in phases else model


class Wraps(Changed):
    """The result has no ``after_step``."""

    def change(self, model: Any, phase: str) -> None:
        class Bare(type(model)):  # type: ignore[misc]
            def __getattribute__(self, name: str) -> Any:
                if name == "after_step":
                    raise AttributeError(name)
                return super().__getattribute__(name)

            def __getattr__(self, name: str) -> Any:
                if name == "after_step":
                    raise AttributeError(name)
                return super().__getattr__(name)

        if type(model).__name__ != "Bare":
            model.__class__ = Bare


class DoesNothing(Changed):
    """Leaves all layers unquantized."""

    capabilities = frozenset({QuantizerCapability.TRAIN})

    @hookimpl
    def ernie_quantize_model(self, model: Any, phase: str) -> Any:
        if phase != "train":
            raise UsageError("unknown phase", found=phase)
        return model


class TooCoarse(Changed):
    """Promises what eight bits cannot give."""

    capabilities = frozenset({QuantizerCapability.TRAIN})
    min_sqnr_db = 90.0


class DividesByZero(Changed):
    """A weight of zeros becomes NaN."""

    capabilities = frozenset({QuantizerCapability.TRAIN})

    def change(self, model: Any, phase: str) -> None:
        import paddle

        for layer in self.linears(model):
            if not bool((layer.weight != 0).any()):
                with paddle.no_grad():
                    layer.weight.set_value(layer.weight * float("nan"))


class RoundsNorms(Changed):
    """Norms are rounded as well."""

    capabilities = frozenset({QuantizerCapability.TRAIN})

    def change(self, model: Any, phase: str) -> None:
        if float(model.norm.weight[0]) == 1:
            model.norm.weight.set_value(model.norm.weight * (1 - 2**-20))


class ShrinksAgain(Changed):
    """Each call shrinks the head's input a little more."""

    capabilities = frozenset({QuantizerCapability.TRAIN})

    def change(self, model: Any, phase: str) -> None:
        original = model.logits
        model.logits = lambda hidden: original(hidden * (1 - 1e-6))


class Dithers(Changed):
    """Rounding is dithered by a clock."""

    capabilities = frozenset({QuantizerCapability.TRAIN})

    def change(self, model: Any, phase: str) -> None:
        import time

        if hasattr(model, "dithered"):
            return
        model.dithered = True
        factor = 1 + 1e-6 * (time.perf_counter_ns() % 1000 + 1)
        original = model.logits
        model.logits = lambda hidden: original(hidden * factor)


class BlocksGradient(Changed):
    """One weight is rounded without a way for its gradient."""

    capabilities = frozenset({QuantizerCapability.TRAIN})

    def change(self, model: Any, phase: str) -> None:
        from paddle.nn import functional as F

        from erniecore_conformance.toys.paddle_changes import rounded

        layer = self.linears(model)[0]
        layer.forward = lambda x: F.linear(x, rounded(layer.weight).detach(), layer.bias)


class Reversed(Changed):
    """Gradients arrive with the wrong sign."""

    capabilities = frozenset({QuantizerCapability.TRAIN})

    def change(self, model: Any, phase: str) -> None:
        if hasattr(model, "turned"):
            return
        model.turned = True
        original = model.logits

        def logits(hidden: Any) -> Any:
            out = original(hidden)
            return 2 * out.detach() - out

        model.logits = logits


class ExportsOldScales(Changed):
    """Export halves the scale of one layer when the model was trained."""

    def change(self, model: Any, phase: str) -> None:
        layers = self.linears(model)
        if phase == "export" and layers:
            layers[-1].weight.set_value(layers[-1].weight * 0.2)


class Calibrated(Changed):
    """A toy quantizer that looks at data."""

    capabilities = frozenset({QuantizerCapability.EXPORT, QuantizerCapability.CALIBRATE})

    @hookimpl
    def ernie_calibrate_model(self, model: Any, batches: Any) -> Any:
        from erniecore_conformance.toys.paddle_changes import round_weights

        self.check(batches)
        self.calibrate(round_weights(model))
        return model

    def calibrate(self, model: Any) -> None:
        """Calibrate in a wrong way; overridden by mutants."""

    def check(self, batches: Any) -> None:
        """Refuse too little data."""
        if sum(ids.size for ids in batches) < 32:
            raise DataError("too little calibration data")


class CalibratesWithAnything(Calibrated):
    """Two tokens are enough for it."""

    def check(self, batches: Any) -> None:
        """All data will do."""


class StoresOtherKeys(Calibrated):
    """Its cache holds keys that are a little larger than those of a pass without a cache."""

    def calibrate(self, model: Any) -> None:
        import paddle

        class Larger(paddle.nn.Layer):  # type: ignore[misc]
            quant_dtype, static = "larger", True

            def encode(self, layer: int, part: str, x: Any) -> Any:
                return (x * 1.1,)

            def decode(self, layer: int, part: str, value: Any, like: Any) -> Any:
                return value[0]

        model.cache_codec = Larger()


class HidesNan(Changed):
    """NaN in a weight becomes zero."""

    capabilities = frozenset({QuantizerCapability.TRAIN})

    @hookimpl
    def ernie_quantize_model(self, model: Any, phase: str) -> Any:
        import paddle

        for parameter in model.parameters():
            parameter.set_value(paddle.nan_to_num(parameter))
        return super().ernie_quantize_model(model, phase)


class PatternConfig(QuantizerConfig):
    """Settings with patterns of layer names."""

    layers: tuple[str, ...] = Field(("*",), description="Patterns of layers.")


class TakesAnyPattern(Changed):
    """Patterns that match nothing change nothing."""

    Config = PatternConfig
    capabilities = frozenset({QuantizerCapability.TRAIN})


class CalibratesBadly(Calibrated):
    """One weight loses its sign."""

    def calibrate(self, model: Any) -> None:
        weight = model.layers[0].mlp.up_proj.weight
        weight.set_value(weight.abs())


class CalibratesToOtherTensors(Calibrated):
    """A scale that phase export does not know."""

    def calibrate(self, model: Any) -> None:
        import paddle

        model.layers[0].register_buffer("input_scale", paddle.ones([1]))


MUTANTS = (
    mutant("quantizer_has_a_phase", NoPhase),
    mutant("quantizer_refuses_unknown_phases", AnyPhase),
    mutant("quantizer_keeps_the_interface", Wraps),
    mutant("quantizer_quantizes", DoesNothing),
    mutant("quantizer_is_near", TooCoarse),
    mutant("quantizer_survives_zeros_and_outliers", DividesByZero),
    mutant("quantizer_leaves_vectors_alone", RoundsNorms),
    mutant("quantizer_is_idempotent", ShrinksAgain),
    mutant("quantizer_repeats", Dithers),
    mutant("quantizer_gradient_passes_straight_through", BlocksGradient),
    mutant("quantizer_trains", Reversed),
    mutant("quantizer_exports_what_was_trained", ExportsOldScales),
    mutant("quantizer_calibrated_is_near", CalibratesBadly),
    mutant("quantizer_calibrated_fits_its_export", CalibratesToOtherTensors),
    mutant("quantizer_calibration_needs_data", CalibratesWithAnything),
    mutant("quantizer_decodes_what_it_evaluates", StoresOtherKeys),
    mutant("quantizer_refuses_weights_that_are_not_finite", HidesNan),
    mutant("quantizer_refuses_patterns_that_match_nothing", TakesAnyPattern),
)
