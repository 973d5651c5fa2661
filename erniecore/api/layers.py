"""Building block: utilities for layers of any model. Imports Paddle."""

from erniecore_ops.derived import child, derived, replaced, sublayer
from erniecore_ops.matmul import Linear

from erniecore.engine.models.filling import (
    add_buffers,
    borrowed,
    borrowed_on_use,
    fill,
    filled,
    give,
    is_empty,
    is_stored,
    keep_part,
    keep_range,
    repeated_layers,
    stored_dtype,
    stored_parts,
    stored_values,
    tensors_of,
    wait_for,
)
from erniecore.engine.training.recompute import recompute

__all__ = [
    "Linear",
    "add_buffers",
    "borrowed",
    "borrowed_on_use",
    "child",
    "derived",
    "fill",
    "filled",
    "give",
    "is_empty",
    "is_stored",
    "keep_part",
    "keep_range",
    "recompute",
    "repeated_layers",
    "replaced",
    "stored_dtype",
    "stored_parts",
    "stored_values",
    "sublayer",
    "tensors_of",
    "wait_for",
]
