"""The plugin objects: weight-only quantization schemes with one implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from erniecore.api import ConfigError, UsageError, hookimpl
from erniecore.api.quantizer import QuantizerCapability, QuantizerPlugin
from erniecore_weight_only.config import Bf16Config, LayersConfig, MixConfig, Nf4Config, WholeConfig
from erniecore_weight_only.schemes import Rule, Scheme, packed_bytes


class FrozenPlugin(QuantizerPlugin):
    """Quantizes weights and freezes them; an adapter is trained (QLoRA)."""

    capabilities = frozenset({QuantizerCapability.TRAIN, QuantizerCapability.EXPORT, QuantizerCapability.EMPTY})

    def rules(self, config: Any) -> list[Rule]:
        """What is packed how; of several rules the last counts."""
        raise NotImplementedError

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Packed weights are not trained."""
        if settings.adapter is None:
            message = f"{self.name} keeps the weights fixed, so something must be trained on them: add --adapter lora"
            raise ConfigError.at("quantizer", message)

    @hookimpl
    def ernie_packed_bytes(self, config: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Bytes of what is packed, for the plan."""
        return packed_bytes(shapes, self.rules(config), config.head)

    @hookimpl
    def ernie_quantize_model(self, config: Any, model: Any, phase: str) -> Any:
        """Both phases quantize in the same way: training uses the weights as they are stored."""
        if phase not in self.capabilities:
            raise UsageError("unknown phase", found=phase, expected="train or export")
        from erniecore_weight_only.packing import pack_model

        return pack_model(model, self.rules(config), self.kinds(), config.head)

    def kinds(self) -> Any:
        """The layer classes of other schemes, a ``packing.Kinds``; None: the default ones."""
        return None


class _Whole(FrozenPlugin):
    """One scheme for every linear layer."""

    Config: ClassVar[type[LayersConfig]] = WholeConfig
    quant_dtype: ClassVar[str]

    def rules(self, config: LayersConfig) -> list[Rule]:
        """The rules of ``layers`` and ``ignore``, which wins."""
        scheme = Scheme(self.quant_dtype, config.group_size if isinstance(config, WholeConfig) else 0)
        usual = type(config).model_fields
        return [
            Rule("layers", config.layers, scheme, usual["layers"].default),
            Rule("ignore", config.ignore, None, usual["ignore"].default),
        ]


class Bf16Plugin(_Whole):
    """bfloat16 as the file has it, which is mapped; see ``kept``."""

    name, quant_dtype = "bf16", "bf16"
    summary = "Frozen weights in bfloat16, as public files have them: mapped, half the memory, exact"
    Config = Bf16Config
    capabilities = frozenset({QuantizerCapability.TRAIN, QuantizerCapability.EMPTY})
    min_sqnr_db = 45.0

    @hookimpl
    def ernie_quantize_model(self, config: Any, model: Any, phase: str) -> Any:
        """See ``FrozenPlugin``; with ``exact``, what is packed already stays as it is."""
        from erniecore_weight_only.packing import keep_stored

        if not config.exact:
            return super().ernie_quantize_model(config=config, model=model, phase=phase)
        return keep_stored(model, self.rules(config), self.kinds(), "bfloat16")

    def kinds(self) -> Any:
        """Those of ``kept``, which take empty layers."""
        from erniecore_weight_only.kept import KINDS

        return KINDS


class Wint8Plugin(_Whole):
    """int8, one scale per output."""

    name, quant_dtype = "wint8", "int8"
    summary = "Frozen weights in 8 bits: every linear layer and expert"
    min_sqnr_db = 35.0


class Wint4Plugin(_Whole):
    """int4, one scale per output or per group."""

    name, quant_dtype = "wint4", "int4"
    summary = "Frozen weights in 4 bits: every linear layer and expert"
    min_sqnr_db = 10.0


class Nf4Plugin(_Whole):
    """NF4, one scale per 64 inputs."""

    name, quant_dtype = "nf4", "nf4"
    summary = "Frozen weights in 4-bit NormalFloat, a scale per 64 inputs (QLoRA)"
    Config = Nf4Config
    min_sqnr_db = 12.0


class Wint48Plugin(FrozenPlugin):
    """The mixture that ERNIEKit calls ``wint4/8`` or ``weight_only_mix``."""

    name = "wint4-8"
    summary = "Frozen weights: routed experts in 4 bits, attention and dense layers in 8"
    Config = MixConfig
    min_sqnr_db = 35.0

    def rules(self, config: MixConfig) -> list[Rule]:
        """``int8`` wins over ``int4``, ``ignore`` over both."""
        usual = MixConfig.model_fields
        return [
            Rule("int4", config.int4, Scheme("int4", config.group_size), usual["int4"].default),
            Rule("int8", config.int8, Scheme("int8"), usual["int8"].default),
            Rule("ignore", config.ignore, None, usual["ignore"].default),
        ]


wint8, wint4, wint4_8, nf4, bf16 = Wint8Plugin(), Wint4Plugin(), Wint48Plugin(), Nf4Plugin(), Bf16Plugin()
