"""How much each expert of a model is used on some texts: the sum of the weights with which tokens go to it. A model whose load is
balanced uses all of them equally often, but not with equal weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253

from erniecore.api.experts import ExpertLayer

if TYPE_CHECKING:
    from numpy.typing import NDArray


@paddle.no_grad()  # type: ignore[untyped-decorator]
def expert_weights(model: Any, batches: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
    """Float32 [E] for each layer with experts, in the order of the model; a layer that does not run has zeros.

    Args:
        batches: ids [B, S] without padding.
    """
    layers: list[Any] = [layer for _, layer in model.named_sublayers() if isinstance(layer, ExpertLayer)]
    found = [np.zeros(layer.expert_shapes()["down_proj"][0], np.float32) for layer in layers]

    def counting(total: NDArray[np.float32]) -> Any:
        def count(layer: Any, given: tuple[Any, ...]) -> None:
            _, experts, weights = given
            np.add.at(total, experts.numpy().ravel(), weights.numpy().ravel())

        return count

    hooks = [layer.register_forward_pre_hook(counting(total)) for layer, total in zip(layers, found, strict=True)]
    was_training = model.training
    model.eval()
    try:
        for ids in batches:
            model.features(paddle.to_tensor(ids))
    finally:
        for hook in hooks:
            hook.remove()
        if was_training:
            model.train()
    return found
