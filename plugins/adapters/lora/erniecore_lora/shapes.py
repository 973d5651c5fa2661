"""What an adapter adds to a model, by its settings or its files. No paddle: the plan asks here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from erniecore.api import ConfigError
from erniecore_lora.config import LoraConfig, Variant
from erniecore_lora.saved import open_saved
from erniecore_lora.sizes import Size
from erniecore_lora.targets import Target, choose, of_shapes


def new_sizes(config: LoraConfig, variant: Variant, known: Sequence[Target]) -> dict[Target, Size]:
    """The updates that the settings ask for.

    Raises:
        ConfigError: a pattern that matches nothing, or a rank above a matrix's own with ``init: pissa``.
    """
    size = Size(config.rank, config.resolved_alpha, variant.rank_stabilized)
    chosen = choose(known, config.targets)
    small = min(chosen, key=lambda target: min(target.shape[-2:]))
    if config.init == "pissa" and config.rank > min(small.shape[-2:]):
        raise ConfigError.at(
            "adapter.rank", f"pissa needs a rank of at most {min(small.shape[-2:])}, that of {small.name}"
        )
    return dict.fromkeys(chosen, size)


def trained_shapes(
    config: LoraConfig, shapes: Mapping[str, Sequence[int]], variant: Variant
) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter that an adapter with these settings trains, on a model of these shapes."""
    known = of_shapes(shapes)
    if config.path:
        sizes = open_saved(config.path).sizes(known)
    else:
        sizes = new_sizes(config, variant, known)
    found: dict[str, tuple[int, ...]] = {}
    for target, size in sizes.items():
        *stack, num_in, num_out = target.shape
        name = f"{target.layer}.lora.default.{target.parameter}"
        found[f"{name}.A"], found[f"{name}.B"] = (*stack, num_in, size.rank), (*stack, size.rank, num_out)
        if variant.magnitudes:
            found[f"{name}.magnitude"] = (*stack, num_out)
    return found
