"""For callback plugins: watch a run without changing it."""

from erniecore.types.run import RunView

__all__ = [
    "RunView",
]
