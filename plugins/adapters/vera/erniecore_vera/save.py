"""Writing the adapter of a model in PEFT's layout, which ``saved.py`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from erniecore_lora import linear
from erniecore_lora.save import as_array
from paddle import nn  # noqa: TID253

from erniecore_vera.saved import SHARED, B, D

if TYPE_CHECKING:
    from erniecore_vera.layers import Vectors
    from erniecore_vera.projections import Array


def save(model: nn.Layer, target: Path, *, base: str = "", projections: bool = True) -> Path:
    """Write the active adapter into the existing directory ``target``; float32. Raises ``UsageError``: there is none."""
    some: Vectors = next(iter(linear.active_changes(model).values()))
    drawn = some.shared.drawn
    settings = {
        "peft_type": "VERA",
        "r": len(drawn.a),
        "d_initial": some.d_initial,
        "projection_prng_key": drawn.seed,
        "save_projection": projections,
        "vera_dropout": some.dropout,
    }
    shared = dict(zip(SHARED, (drawn.a, drawn.b), strict=True)) if projections else {}
    return linear.write(model, target, base, settings, _parts, shared)


def _parts(change: Vectors) -> dict[str, Array]:
    return {D: as_array(change.d), B: as_array(change.b)}
