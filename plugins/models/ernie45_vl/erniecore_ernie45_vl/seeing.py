"""A model together with the pictures of one prompt, so that whatever decodes text decodes answers about them: pictures are
seen with the prompt, and later tokens go on where their positions end."""

from __future__ import annotations

from typing import Any

from paddle import Tensor, nn  # noqa: TID253

from erniecore.api.model import Cache, Features
from erniecore_ernie45_vl.model import Ernie45VlForConditionalGeneration


class Seeing(nn.Layer):  # type: ignore[misc]
    """Implements ``erniecore.api.model.CausalLM`` for ``erniecore.generate``: one prompt, which may have several answers.

    Args:
        pictures: fields of ``model.Pictures``, but for the kinds of tokens, which are found by their ids.
    """

    def __init__(self, model: Ernie45VlForConditionalGeneration, **pictures: Tensor) -> None:
        super().__init__()
        self.model, self.architecture, self.pictures = model, model.architecture, pictures
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
        """The prompt first; with a cache, what follows then comes with the positions that text alone would have.

        Raises ``ValueError`` for several prompts or a padded one."""
        if cache is not None and cache.length:
            assert position_ids is not None
            return self.model.features(
                input_ids, position_ids=position_ids + self.shift, attention_mask=attention_mask, cache=cache, **masks
            )
        if attention_mask is not None or input_ids.shape[0] != 1:
            raise ValueError("pictures are seen with one prompt at a time, without padding")
        positions, following = self.model.positions(input_ids, **self.pictures)
        self.shift = int(following[0]) - input_ids.shape[1]
        return self.model.features(input_ids, position_ids=positions, cache=cache, **self.pictures, **masks)

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``CausalLM``."""
        logits: Tensor = self.model.logits(hidden)
        return logits

    def head(self) -> Any:
        """See ``CausalLM``."""
        return self.model.head()

    def after_step(self, *, rate: float = 0.0) -> None:
        """Nothing is trained."""
