"""Building block: what layers of any model have in common. Imports paddle."""

from erniecore.engine.models.derived import child, derived, replaced, sublayer
from erniecore.engine.training.recompute import recompute

__all__ = [
    "child",
    "derived",
    "recompute",
    "replaced",
    "sublayer",
]
