"""Binds the images and videos of one prompt to a model, so that text generation works unchanged."""

from __future__ import annotations

from typing import Any

from paddle import Tensor, nn  # noqa: TID253

from erniecore.api.model import Cache, Features
from erniecore_ernie45_vl.model import Ernie45VlForConditionalGeneration


class MultimodalModel(nn.Layer):  # type: ignore[misc]
    """A ``erniecore.api.model.CausalLM`` for ``erniecore.generate``: one prompt with images, and one or more completions.

    Args:
        inputs: fields of ``seeing_model.VisionInputs``, except the token types, which follow from the ids.
    """

    def __init__(self, model: Ernie45VlForConditionalGeneration, **inputs: Tensor) -> None:
        super().__init__()
        self.model, self.architecture, self.inputs = model, model.architecture, inputs
        self.shift = 0

    def features(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **masks: Tensor | None,
    ) -> Features:
        """Prefill with the images, then decode with text positions shifted behind them.

        Raises ``ValueError`` for several prompts or a padded one."""
        if cache is not None and cache.length:
            assert position_ids is not None
            return self.model.features(
                input_ids, position_ids=position_ids + self.shift, attention_mask=attention_mask, cache=cache, **masks
            )
        if attention_mask is not None or input_ids.shape[0] != 1:
            raise ValueError("images need one prompt at a time, without padding")
        positions, following = self.model.positions(input_ids, **self.inputs)
        self.shift = int(following[0]) - input_ids.shape[1]
        return self.model.features(input_ids, position_ids=positions, cache=cache, **self.inputs, **masks)

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.logits(hidden)
        return logits

    def head(self) -> Any:
        return self.model.head()

    def after_step(self, *, rate: float = 0.0) -> None:
        """Does nothing: the model is not trained."""
