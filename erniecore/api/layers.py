"""Building block: utilities for layers of any model. Imports Paddle."""

from erniecore_ops.derived import child, derived, replaced, sublayer

from erniecore.engine.models.filling import (
    add_buffers,
    fill,
    filled,
    is_empty,
    keep_part,
    keep_range,
    stored_dtype,
    stored_parts,
    stored_values,
)
from erniecore.engine.training.recompute import recompute

__all__ = [
    "add_buffers",
    "child",
    "derived",
    "fill",
    "filled",
    "is_empty",
    "keep_part",
    "keep_range",
    "recompute",
    "replaced",
    "stored_dtype",
    "stored_parts",
    "stored_values",
    "sublayer",
]
