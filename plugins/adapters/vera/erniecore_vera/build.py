"""From settings or files to an adapted model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import paddle  # noqa: TID253
from erniecore_lora import adapt as adapting
from erniecore_lora.linear import experts_left_out, finish_loading, put_head, wrapper
from erniecore_lora.targets import Target, choose_linear
from paddle import nn  # noqa: TID253

from erniecore_vera.layers import Shared, Vectors, VeraLinear
from erniecore_vera.projections import Projections, draw
from erniecore_vera.saved import SavedVera, open_saved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from erniecore_vera.config import VeraConfig


def adapt(model: nn.Layer, config: VeraConfig) -> nn.Layer:
    """``model`` with trained vectors, everything else frozen.

    Raises:
        ConfigError: targets that match nothing. CheckpointError: ``config.path`` does not fit.
    """
    adapting.freeze(model)
    left_out = 0
    if config.path:
        made = _fill(model, open_saved(config.path), adapting.DEFAULT)
    else:
        left_out = experts_left_out(model, config)
        targets = choose_linear(adapting.targets_of(model), config.targets, "vera")
        drawn = draw(config.seed, config.rank, [target.shape for target in targets])
        made = _add(model, adapting.DEFAULT, targets, drawn, config.d_initial)
    for vectors in made.values():
        vectors.dropout = config.dropout
    return adapting.adapted_model(model, experts_left_out=left_out)


def load(model: nn.Layer, directory: str | Path, name: str = adapting.DEFAULT) -> nn.Layer:
    """``model`` with a saved adapter, active and not trained; further ones need other names.

    Raises:
        CheckpointError: the directory is no such adapter, is damaged, or does not fit the model.
    """
    return finish_loading(model, _fill(model, open_saved(directory), name))


def _add(
    model: nn.Layer, name: str, targets: Iterable[Target], drawn: Projections, d_initial: float
) -> dict[Target, Vectors]:
    shared: dict[str, Shared] = {}

    def make(target: Target, dtype: object) -> Vectors:
        if str(dtype) not in shared:
            shared[str(dtype)] = Shared(drawn, dtype)
        return Vectors(target.shape, dtype, shared[str(dtype)], d_initial)

    return adapting.attach(model, name, targets, wrapper(VeraLinear), make)


def _fill(model: nn.Layer, saved: SavedVera, name: str) -> dict[Target, Vectors]:
    put_head(model, saved.linear)
    vectors = saved.vectors(adapting.targets_of(model))
    made = _add(model, name, vectors, saved.projections(vectors), saved.linear.number("d_initial", float))
    with paddle.no_grad():
        for target, change in made.items():
            change.d.set_value(paddle.to_tensor(vectors[target].d).astype(change.d.dtype))
            change.b.set_value(paddle.to_tensor(vectors[target].b).astype(change.b.dtype))
    return made
