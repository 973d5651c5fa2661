"""A good model plugin that reads media: three numbers in place of each placeholder. paddle inside functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from erniecore.api import Json, hookimpl
from erniecore.api.model import Layout, StateAdapter, TensorMap
from erniecore_conformance.toys.model import ToyModelPlugin, ToyStateAdapter

if TYPE_CHECKING:
    from erniecore.api.testing import Layer, Tensor

#: stands for an image, which is three numbers
PLACEHOLDER, VALUES = 259, 3


def seeing_model(architecture: Json) -> Layer:
    """A toy model with media."""
    import paddle
    from paddle import nn

    from erniecore_conformance.toys.paddle_lm import ToyLM

    class ToySeeing(ToyLM):
        """Placeholders are replaced by their images, one after the other."""

        def __init__(self, architecture: Json) -> None:
            super().__init__(architecture)
            self.image_proj = nn.Linear(VALUES, architecture["hidden_size"], bias_attr=False)

        def embed(self, input_ids: Tensor, pixel_values: Tensor | None = None) -> Tensor:
            """Raises ``ValueError`` for another number of placeholders than of images."""
            x_BSH = super().embed(input_ids)
            if pixel_values is None:
                return x_BSH
            places = (input_ids.reshape([-1]) == PLACEHOLDER).nonzero().reshape([-1])
            return self.put(x_BSH, places, self.image_proj(pixel_values.astype(x_BSH.dtype)))

        def put(self, x_BSH: Tensor, places: Tensor, images: Tensor) -> Tensor:
            """The stream with images at their places."""
            if len(places) != len(images):
                raise ValueError(f"{len(places)} placeholders for {len(images)} images")
            rows = x_BSH.reshape([-1, x_BSH.shape[-1]])
            return paddle.scatter(rows, places, images).reshape(x_BSH.shape)

    return ToySeeing(architecture)


class SeeingStateAdapter(ToyStateAdapter):
    """With the matrix for images."""

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        """One map per parameter."""
        image = self._matrix("image_proj.weight", VALUES, self.architecture["hidden_size"])
        return [*super().maps(layout, names), replace(image, active_share=0.0)]


class ToySeeingPlugin(ToyModelPlugin):
    """A model with media."""

    def conformance_media(self, architecture: Json) -> list[tuple[list[int], Mapping[str, Any]]]:
        """Two rows, one with two images."""
        import numpy as np

        pixels = np.random.default_rng(0).random((3, VALUES)).astype(np.float32)
        text = list(range(5, 25))
        one, two = [*text, PLACEHOLDER, 30, 31], [7, PLACEHOLDER, *text, PLACEHOLDER]
        rows = [(one, {"pixel_values": pixels[:1]}), (two, {"pixel_values": pixels[1:]})]
        return [(ids, media) for ids, media in rows]

    @hookimpl
    def ernie_build_model(self, architecture: Json, dtype: str) -> Any:
        model = seeing_model(architecture)
        model.to(dtype=dtype)
        self.change(model)
        return model

    def change(self, model: Any) -> None:
        """Break the model; overridden by mutants."""

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        return Layout((("image_proj.weight", "replicate"), *super().ernie_model_layout().rules))

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        return SeeingStateAdapter(architecture)


plugin = ToySeeingPlugin()
