"""Variances of what layers hand on, through Paddle's forward hooks, and norms of gradients. Numbers
stay on the device until the step is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api.layers import repeated_layers
from erniecore.api.ops import square_sum


class Probe:
    """Hooks on the repeated layers of a model (the entries of its lists of layers), until :meth:`close`."""

    def __init__(self, model: nn.Layer) -> None:
        self._variances: dict[str, list[Tensor]] = {}
        self._squares: dict[str, Tensor] = {}
        self._layers = tuple(repeated_layers(model))
        self._hooks = [
            layer.register_forward_post_hook(self._hook(name)) for name, layer in repeated_layers(model).items()
        ]

    def _hook(self, name: str) -> Any:
        def measure(layer: nn.Layer, given: Any, output: Any) -> None:
            stream = output[0] if isinstance(output, (tuple, list)) else output
            # a pass without gradients is an evaluation, or the first of a layer that is recomputed
            if layer.training and paddle.is_grad_enabled() and stream.ndim == 3:
                with paddle.no_grad():
                    self._variances.setdefault(name, []).append(stream.detach().astype("float32").var(unbiased=False))

        return measure

    def take_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Sums of squares of the gradients in each layer, of what this rank updates."""
        with paddle.no_grad():
            for layer in self._layers:
                own = [g for name, g in gradients.items() if name.startswith(f"{layer}.")]
                if own:
                    self._squares[layer] = square_sum(own)

    def metrics(self) -> dict[str, float]:
        """Means over the passes since the probe was made; one transfer from the device."""
        if not self._variances:
            return {}
        with paddle.no_grad():
            norms = paddle.stack(list(self._squares.values())).sqrt().numpy() if self._squares else []
        with paddle.no_grad():
            means = paddle.stack([paddle.stack(found).mean() for found in self._variances.values()]).numpy()
        found = {f"activations/variance/{name}": float(mean) for name, mean in zip(self._variances, means, strict=True)}
        found |= {f"activations/gradient/{name}": float(norm) for name, norm in zip(self._squares, norms, strict=True)}
        return {**found, "activations/max_variance": float(means.max())}

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
