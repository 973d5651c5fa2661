"""OFT adapters in PEFT's layout: ``oft_R.weight`` [blocks, values above the diagonal of a block] of each layer. No paddle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_lora.linear_files import SavedLinear, read
from erniecore_lora.targets import Target

from erniecore_oft.shapes import Blocks

if TYPE_CHECKING:
    from erniecore_lora.saved import Array

PART = "oft_R.weight"
#: what is not computed here: the radius of COFT, and one block for all of a layer
_HARMLESS: dict[str, Sequence[Any]] = {"coft": (), "block_share": ()}


@dataclass(frozen=True)
class SavedOft:
    """An adapter directory that was read."""

    linear: SavedLinear

    def blocks(self, known: Sequence[Target]) -> dict[Target, Blocks]:
        """Those of each layer of a model with these targets. Raises ``CheckpointError`` where they do not fit."""
        terms = self.linear.number("num_cayley_neumann_terms") if self.linear.config.get("use_cayley_neumann") else 0
        if terms in (1, 2) or terms < 0:
            raise self.linear.fault(f"a series of {terms} terms", "num_cayley_neumann_terms")
        terms = 4 if terms == 3 else terms  # PEFT computes the same of both
        found = {}
        for target, parts in self.linear.targets(known).items():
            count, values = parts[PART].shape if parts[PART].ndim == 2 else (0, 0)
            size = (1 + isqrt(1 + 8 * values)) // 2
            if size * (size - 1) // 2 != values or count * size != target.shape[-2]:
                message = f"{list(parts[PART].shape)} rotates no {target.shape[-2]} inputs"
                raise self.linear.fault(message, target.layer)
            found[target] = Blocks(count, size, terms)
        return found

    def values(self, target: Target) -> Array:
        """The trained values of a layer."""
        return self.linear.modules[target.layer][PART]


def open_saved(directory: str | Path) -> SavedOft:
    """Read an adapter. Raises ``CheckpointError``: there is none, it is damaged, or of a variant that is not computed here."""
    return SavedOft(read(directory, "OFT", (PART,), harmless=_HARMLESS))
