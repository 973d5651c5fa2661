"""For callback plugins: watch a run without changing it."""

from erniecore.types.run import Evaluation, RunView

__all__ = [
    "Evaluation",
    "RunView",
]
