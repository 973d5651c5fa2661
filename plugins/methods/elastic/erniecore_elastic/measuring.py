"""How much each expert of a model is used on some texts: the sum of the weights with which tokens go to it. A model whose load is
balanced uses all of them equally often, but not with equal weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_ptq.chain import Chain, States

from erniecore.api.experts import ExpertLayer
from erniecore.api.layers import borrowed, tensors_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@contextmanager
def counting(model: Any) -> Iterator[list[NDArray[np.float32]]]:
    """Within, passes of ``model`` add to the arrays [E] that are yielded, one for each layer with experts in the order of the
    model, the weights of the tokens that go to each; a layer that does not run has zeros. The model is in evaluation mode."""
    layers: list[Any] = [layer for _, layer in model.named_sublayers() if isinstance(layer, ExpertLayer)]
    found = [np.zeros(layer.expert_shapes()["down_proj"][0], np.float32) for layer in layers]

    def adding(total: NDArray[np.float32]) -> Any:
        def add(layer: Any, given: tuple[Any, ...]) -> None:
            _, experts, weights = given
            np.add.at(total, experts.numpy().ravel(), weights.numpy().ravel())

        return add

    with ExitStack() as after, paddle.no_grad():
        if model.training:
            after.callback(model.train)
        model.eval()
        for layer, total in zip(layers, found, strict=True):
            after.callback(layer.register_forward_pre_hook(adding(total)).remove)
        yield found


def expert_weights(model: Any, batches: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
    """See :func:`counting`, on whole passes over ``batches``: ids [B, S] without padding."""
    with counting(model) as found:
        for ids in batches:
            model.features(paddle.to_tensor(ids))
    return found


def expert_weights_by_layer(model: Any, batches: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
    """As :func:`expert_weights`, of an empty model: all batches pass a decoder layer before the next one is read, so that one of
    them is in memory, and each is read once. Between layers are float32 [tokens, H]."""
    chain, states = Chain(model, batches), States()
    with counting(model) as found:
        for place in range(len(chain.names)):
            with borrowed(tensors_of(chain.layer(place))):
                states = chain.through(place, states)
    return found
