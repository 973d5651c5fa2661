"""What a smaller model inside a model is, before a weight is read: its config.json, and which tensor of the large model each
of its tensors is. No paddle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from erniecore_checkpoint.tensors import Array, Tensor

from erniecore.api import UsageError
from erniecore.api.model import DecoderShape, ElasticSizes, Json, LayerShape, TensorMap
from erniecore_elastic.sampling import even_layers


@dataclass(frozen=True)
class Part:
    """The smaller model.

    Attributes:
        layers: places of its layers in the large model, ascending.
        experts: per row (see ``ElasticSizes``) the numbers of its experts there, ascending; None: all of them.
        num_selected: experts per token; 0: there are none.
    """

    layers: tuple[int, ...]
    experts: tuple[tuple[int, ...], ...] | None
    num_selected: int


def choose(
    sizes: ElasticSizes, depth: int, experts: int, selected: int, usage: Sequence[Sequence[float]] | None = None
) -> Part:
    """Evenly spaced layers, and the experts of each row that are used most; of equals the one with the lower number.

    Args:
        depth, experts, selected: sizes; 0: as many as there are. usage: float per row and expert, needed for ``experts``.
    Raises:
        UsageError: sizes that the model cannot have, or all of them as they are.
    """
    _check("--depth", depth, sizes.layers, 2)
    _check("--experts", experts, sizes.experts, 2)
    _check("--k", selected, sizes.num_selected, 1)
    kept = experts or sizes.experts
    k = selected or sizes.num_selected
    if k > kept:
        fix = f"--k {kept} or less"
        raise UsageError("a token cannot go to more experts than there are", where="--k", found=str(k), fix=fix)
    layers = even_layers(sizes.layers, depth or sizes.layers)
    numbers = None
    if kept < sizes.experts:
        if usage is None:
            raise UsageError(
                "nothing says which experts are used",
                where="--experts",
                fix="name texts to measure it on (--data FILE), or a run of elastic-pt or elastic-sft, which records it",
            )
        numbers = tuple(tuple(sorted(np.argsort(-np.asarray(row), kind="stable")[:kept].tolist())) for row in usage)
    if len(layers) == sizes.layers and numbers is None and k == sizes.num_selected:
        raise UsageError(
            "this is the whole model", where="--depth, --experts, --k", fix="name a smaller size of one of them"
        )
    return Part(layers, numbers, k)


def _check(flag: str, value: int, most: int, least: int) -> None:
    if value and not most:
        raise UsageError("the model has no routed experts", where=flag, fix="leave it out")
    if value and not least <= value <= most:
        raise UsageError("no such size", where=flag, found=str(value), expected=f"{least} to {most}")


def reduced_config(source: Json, shape: DecoderShape, part: Part) -> dict[str, Any]:
    """config.json of the smaller model. Raises ``UsageError`` where its keys cannot say which layers have experts."""
    found: dict[str, Any] = {**source, "num_hidden_layers": len(part.layers)}
    routed = [shape.layers[place].experts > 0 for place in part.layers]
    if not any(layer.experts for layer in shape.layers):
        return found
    places = [place for place, is_routed in enumerate(routed) if is_routed]
    step = places[1] - places[0] if len(places) > 1 else 1
    first, last = (places[0], places[-1]) if places else (0, -1)
    regular = bool(places) and places == [i for i in range(first, last + 1) if (i + 1) % step == 0]
    if not regular:
        raise UsageError(
            "config.json cannot say which of these layers have experts",
            where="--depth",
            found=" ".join("experts" if is_routed else "dense" for is_routed in routed),
            fix="choose another number of layers",
        )
    count = len(part.experts[0]) if part.experts is not None else shape.layers[part.layers[places[0]]].experts
    found |= {"moe_num_experts": count, "moe_k": part.num_selected}
    found |= {"moe_layer_start_index": first, "moe_layer_end_index": last, "moe_layer_interval": step}
    return found


def check_shape(found: DecoderShape, source: DecoderShape, part: Part) -> None:
    """Raises ``UsageError`` unless a model with ``found`` is the part of one with ``source``."""

    def smaller(layer: LayerShape) -> LayerShape:
        if not layer.experts:
            return layer
        count = layer.experts if part.experts is None else len(part.experts[0])
        return replace(layer, experts=count, selected=part.num_selected)

    if list(found.layers) != [smaller(source.layers[place]) for place in part.layers]:
        raise UsageError("this architecture cannot be cut down by its config.json", fix="ask who made its model plugin")


def part_tensors(
    stored: Mapping[str, tuple[Path, Tensor]],
    maps: Sequence[TensorMap],
    own: Sequence[TensorMap],
    part: Part,
    names: Mapping[str, str],
    rows: Mapping[str, int],
) -> dict[str, Tensor]:
    """Public name -> tensor of the smaller model, read when asked for: bytes as they are stored, or a selection of them.

    Args:
        stored: of the large model. maps: its maps; own: those of the smaller one, in the same layout.
        names: name of a tensor of ours in the smaller model -> in the large one. rows: -> its row of ``part.experts``.
    """
    of = {entry.name: entry for entry in maps}
    found: dict[str, Tensor] = {}
    for entry in own:
        large = of[names[entry.name]]
        kept = None if part.experts is None else part.experts[rows[entry.name]]
        places = kept if entry.stacked and kept is not None else range(len(entry.sources))
        for name, shape, place in zip(entry.sources, entry.source_shapes, places, strict=True):
            tensor = stored[large.sources[place]][1]
            if name not in found:
                found[name] = _selected(tensor, large.source_shapes[place], shape, kept or (), trained=entry.trained)
    return found


def _selected(
    tensor: Tensor, before: tuple[int, ...], after: tuple[int, ...], kept: tuple[int, ...], *, trained: bool
) -> Tensor:
    """The tensor, or its entries of the ``kept`` experts along the axis in which the shapes differ. What is not trained balances
    the load of all experts, and begins at 0 for some of them."""
    axes = [axis for axis, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    if not axes:
        return tensor
    (axis,) = axes
    shape = (*tensor.shape[:axis], len(kept), *tensor.shape[axis + 1 :])

    def take() -> Array:
        taken: Array = np.take(tensor.load(), kept, axis=axis)
        return taken if trained else np.zeros_like(taken)

    return Tensor(tensor.dtype, shape, partial(take), tensor.release)
