"""New weights of an empty model, tensor by tensor: each value is a function of (seed, public name, position) alone, see
``erniecore_ops.random_values``. Positions are those of the public tensor of layout ``pt``, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle
from erniecore_checkpoint.tensors import SHORT_NAMES, Array
from erniecore_checkpoint.tensors import Tensor as StoredTensor
from erniecore_ops.random_values import Distribution, distribution_of, draw, table_of

from erniecore.engine import arrays
from erniecore.engine.models.filling import Box, Source, fill_from, is_empty
from erniecore.engine.models.weights import check_maps, convert, place, state_of
from erniecore.engine.seed import derive_seed
from erniecore.errors import PluginError
from erniecore.types.model import StateAdapter, TensorMap

if TYPE_CHECKING:
    from erniecore.types.model import Layer
    from erniecore.types.model import Tensor as PaddleTensor


def attach_random(layer: Layer, adapter: StateAdapter, seed: int) -> None:
    """Say that the values of every empty parameter of ``layer`` are new ones, which it gets when it is filled. Raises
    ``PluginError``: the adapter's maps are not the tensors of ``layer``."""
    stored = {name: (Path("random"), tensor) for name, tensor in random_tensors(layer, adapter, seed).items()}
    targets = state_of(layer)
    empty = [entry for entry in adapter.maps("pt") if is_empty(targets[entry.name])]
    fill_from(targets, {entry.name: _source(stored, entry) for entry in empty})


def _source(stored: Mapping[str, tuple[Path, StoredTensor]], entry: TensorMap, box: Box = ()) -> Source:
    """New values of a tensor, or of the part of it in ``box``: of a stack, those of other matrices are not made."""
    return Source(partial(place, stored, entry, box), within=None if box else partial(_source, stored, entry))


def random_tensors(layer: Layer, adapter: StateAdapter, seed: int, dtype: str = "") -> dict[str, StoredTensor]:
    """Public name (layout ``pt``) -> new values of a model that was built under ``paddle.LazyGuard``, made when they are asked
    for; what the model built with values, such as a buffer, keeps them.

    Args:
        layer: its initializers say how each parameter is distributed. adapter: names and shapes.
        dtype: ``float32``, ``bfloat16`` or ``float16``: values are rounded to it; empty: of the parameters. Tensors that
            must stay float32 do.
    Raises:
        PluginError: the maps do not fit ``layer``, or cannot write a tensor whose initializer is of no known kind.
    """
    maps, targets = adapter.maps("pt"), state_of(layer)
    check_maps(maps, targets)
    public: dict[str, StoredTensor] = {}
    for entry in maps:
        target = targets[entry.name]
        wanted = entry.dtype or dtype or arrays.dtype_name(target)
        make = target._init_func if is_empty(target) else None
        chosen = distribution_of(target) if make else None
        for index, (name, shape) in enumerate(zip(entry.sources, entry.source_shapes, strict=True)):
            if chosen:
                load: Callable[[], Array] = partial(draw, f"{seed}/{name}", shape, _table(chosen, wanted))
            else:
                load = partial(_own, target, make, entry, index, wanted, derive_seed(seed, entry.name))
            public[name] = StoredTensor(SHORT_NAMES[wanted], tuple(shape), load)
    return public


def _own(target: PaddleTensor, make: Any, entry: TensorMap, index: int, dtype: str, seed: int) -> Array:
    """One public tensor of a parameter whose values its own initializer ``make`` makes, or that has values (None)."""
    if entry.store is None:
        raise PluginError("the model plugin's state adapter cannot write this tensor", where=entry.name)
    if make is not None and not target._is_initialized():
        before = paddle.get_rng_state()
        paddle.seed(seed)
        make(target, None)
        paddle.set_rng_state(before)
    return entry.store(convert(arrays.to_numpy(target), arrays.dtype_name(target), dtype, entry.name))[index]


@lru_cache(maxsize=32)
def _table(chosen: Distribution, dtype: str) -> Array:
    return convert(table_of(chosen), "float64", dtype, chosen.kind)
