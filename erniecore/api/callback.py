"""What a callback is written with: it watches a run and changes nothing."""

from erniecore.types.run import RunView

__all__ = [
    "RunView",
]
