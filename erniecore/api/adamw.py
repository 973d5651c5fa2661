"""Building block: AdamW, to which another optimizer leaves some parameters, and the state of one parameter. Imports paddle."""

from erniecore.engine.optimizers.adamw import AdamW
from erniecore.engine.optimizers.slots import ParameterSlot

__all__ = ["AdamW", "ParameterSlot"]
