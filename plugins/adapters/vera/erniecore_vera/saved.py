"""VeRA adapters in PEFT's layout: ``vera_lambda_d`` [r] and ``vera_lambda_b`` [out] of each layer, and ``base_model.vera_A``
[r, in] and ``.vera_B`` [out, r] of all together, unless ``save_projection`` is false: then they come of
the seed. numpy, no paddle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from erniecore_lora.linear_files import SavedLinear, read
from erniecore_lora.targets import Target

from erniecore.api import CheckpointError
from erniecore_vera.projections import Projections, draw

if TYPE_CHECKING:
    from erniecore_vera.projections import Array

D, B = "vera_lambda_d", "vera_lambda_b"
SHARED = ("vera_A", "vera_B")


class SavedVectors(NamedTuple):
    """``d`` [r] and ``b`` [out] of one layer."""

    d: Array
    b: Array


@dataclass(frozen=True)
class SavedVera:
    """An adapter directory that was read."""

    linear: SavedLinear

    def vectors(self, known: Sequence[Target]) -> dict[Target, SavedVectors]:
        """Those of each layer of a model with these targets. Raises ``CheckpointError`` where they do not fit."""
        rank = self.linear.number("r")
        found = {}
        for target, parts in self.linear.targets(known).items():
            d, b = parts[D], parts[B]
            if d.shape != (rank,) or b.shape != (target.shape[-1],):
                shapes = f"d {list(d.shape)} and b {list(b.shape)}, expected [{rank}] and [{target.shape[-1]}]"
                raise self.linear.fault(shapes, target.layer)
            found[target] = SavedVectors(d, b)
        return found

    def projections(self, targets: Mapping[Target, object]) -> Projections:
        """A and B: those of the file, else of the seed. Raises ``CheckpointError`` where they are too narrow for a layer."""
        rank, seed = self.linear.number("r"), self.linear.number("projection_prng_key")
        inputs, outputs = (max(target.shape[axis] for target in targets) for axis in (-2, -1))
        if not self.linear.config.get("save_projection", True):
            return draw(seed, rank, [(inputs, outputs)])
        if lost := [name for name in SHARED if name not in self.linear.shared]:
            raise CheckpointError(
                "save_projection is true, and the matrices are not there", where=str(self.linear.file), found=lost[0]
            )
        a, b = (self.linear.shared[name] for name in SHARED)
        if a.shape[0] != rank or b.shape[-1] != rank or a.shape[-1] < inputs or b.shape[0] < outputs:
            shapes = f"A {list(a.shape)} and B {list(b.shape)} for layers of {inputs} inputs and {outputs} outputs"
            raise self.linear.fault(shapes, "vera_A")
        return Projections(a, b, seed)


def open_saved(directory: str | Path) -> SavedVera:
    """Read an adapter. Raises ``CheckpointError``: there is none, or it is damaged."""
    return SavedVera(read(directory, "VERA", (D, B), SHARED))
