"""How many blocks rotate the inputs of a layer, and how large they are. No paddle: the plan asks here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from erniecore_lora.targets import Target, choose_linear

from erniecore.api import ConfigError

if TYPE_CHECKING:
    from erniecore_oft.config import OftConfig


class Blocks(NamedTuple):
    """``number`` blocks of ``size`` x ``size``; ``terms`` of the series, 0: the exact transform."""

    number: int
    size: int
    terms: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Of the trained values: those above the diagonal of each block, row by row."""
        return self.number, self.size * (self.size - 1) // 2


def new_blocks(config: OftConfig, known: Sequence[Target]) -> dict[Target, Blocks]:
    """The blocks that the settings ask for.

    Raises:
        ConfigError: a pattern that matches nothing, or a layer whose inputs the blocks do not divide.
    """
    found = {}
    for target in choose_linear(known, config.targets, "oft"):
        inputs = target.shape[-2]
        if inputs % config.block_size:
            fits = [size for size in range(2, min(inputs, 256) + 1) if inputs % size == 0]
            message = f"blocks of {config.block_size} do not divide the {inputs} inputs of {target.name}; these do: "
            raise ConfigError.at("adapter.block_size", message + ", ".join(map(str, fits)))
        found[target] = Blocks(inputs // config.block_size, config.block_size, config.neumann_terms)
    return found
