"""Building block for optimizers: AdamW, for parameters that another optimizer leaves to it, and the state of one parameter.
Imports Paddle.
"""

from erniecore.engine.optimizers.adamw import AdamW
from erniecore.engine.optimizers.slots import ParameterSlot

__all__ = ["AdamW", "ParameterSlot"]
