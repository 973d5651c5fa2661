"""From settings or files to an adapted model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import paddle  # noqa: TID253
from erniecore_lora import adapt as adapting
from erniecore_lora.linear import experts_left_out, finish_loading, put_head, wrapper
from erniecore_lora.targets import Target
from paddle import nn  # noqa: TID253

from erniecore_oft.layers import OftLinear, Rotation
from erniecore_oft.saved import SavedOft, open_saved
from erniecore_oft.shapes import Blocks, new_blocks

if TYPE_CHECKING:
    from erniecore_oft.config import OftConfig


def adapt(model: nn.Layer, config: OftConfig) -> nn.Layer:
    """``model`` with trained rotations, everything else frozen.

    Raises:
        ConfigError: targets that match nothing, or inputs that the blocks do not divide. CheckpointError: ``config.path`` does
            not fit.
    """
    adapting.freeze(model)
    left_out = 0
    if config.path:
        _fill(model, open_saved(config.path), adapting.DEFAULT)
    else:
        left_out = experts_left_out(model, config)
        _add(model, adapting.DEFAULT, new_blocks(config, adapting.targets_of(model)))
    return adapting.adapted_model(model, experts_left_out=left_out)


def load(model: nn.Layer, directory: str | Path, name: str = adapting.DEFAULT) -> nn.Layer:
    """``model`` with a saved adapter, active and not trained; further ones need other names.

    Raises:
        CheckpointError: the directory is no such adapter, is damaged, or does not fit the model.
    """
    return finish_loading(model, _fill(model, open_saved(directory), name))


def _add(model: nn.Layer, name: str, blocks: Mapping[Target, Blocks]) -> dict[Target, Rotation]:
    return adapting.attach(
        model, name, blocks, wrapper(OftLinear), lambda target, dtype: Rotation(blocks[target], dtype)
    )


def _fill(model: nn.Layer, saved: SavedOft, name: str) -> dict[Target, Rotation]:
    put_head(model, saved.linear)
    made = _add(model, name, saved.blocks(adapting.targets_of(model)))
    with paddle.no_grad():
        for target, change in made.items():
            change.skew.set_value(paddle.to_tensor(saved.values(target)).astype(change.skew.dtype))
    return made
