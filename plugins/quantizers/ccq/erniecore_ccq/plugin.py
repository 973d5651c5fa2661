"""The plugin objects: two codes, one implementation, and beside them the integer forms of ``weight_only`` for layers that
need more bits."""

from __future__ import annotations

from typing import Any, ClassVar

from erniecore_weight_only.plugin import FrozenPlugin
from erniecore_weight_only.schemes import Rule, Scheme

from erniecore_ccq.config import CcqConfig
from erniecore_ccq.schemes import CLUSTERS, GROUP, WORDS, CodeScheme


class _Ccq(FrozenPlugin):
    """Convolutional codes (arXiv:2507.07145)."""

    Config = CcqConfig
    quant_dtype: ClassVar[str]

    def rules(self, config: CcqConfig) -> list[Rule]:
        """``ignore`` wins over ``int8``, that over ``int4``, that over ``layers``."""
        schemes = {
            "layers": CodeScheme(self.quant_dtype, GROUP),
            "int4": Scheme("int4"),
            "int8": Scheme("int8"),
            "ignore": None,
        }
        usual = CcqConfig.model_fields
        return [Rule(key, getattr(config, key), scheme, usual[key].default) for key, scheme in schemes.items()]

    def kinds(self) -> Any:
        """Ours for codes, those of ``weight_only`` for integers."""
        from erniecore_ccq.layers import KINDS

        return KINDS


class Ccq25Plugin(_Ccq):
    """Ten words of 16 bits for 64 weights and their scale."""

    name = quant_dtype = WORDS
    summary = "Frozen weights in 2.5 bits: convolutional codes that need no table"
    min_sqnr_db = 2.0


class Ccq206Plugin(_Ccq):
    """A byte for four weights, four bits for the scale of 64."""

    name = quant_dtype = CLUSTERS
    summary = "Frozen weights in 2.06 bits: a byte for four weights, spread to a convolutional code"
    min_sqnr_db = 2.0


ccq25, ccq206 = Ccq25Plugin(), Ccq206Plugin()
