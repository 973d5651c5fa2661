"""For callback plugins: watch a run without changing it."""

from erniecore.capabilities import CallbackCapability
from erniecore.types.run import Evaluation, RunView

__all__ = [
    "CallbackCapability",
    "Evaluation",
    "RunView",
]
