"""Building block: utilities for layers of any model. Imports Paddle."""

from erniecore.engine.models.derived import child, derived, replaced, sublayer
from erniecore.engine.training.recompute import recompute

__all__ = [
    "child",
    "derived",
    "recompute",
    "replaced",
    "sublayer",
]
