"""Names of the weights in checkpoints and ours. numpy only.

Those of the mixture-of-experts text models, and our own names for images and audio. ERNIE 5.0 itself was
never published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from erniecore_ernie45.state import Rules
from erniecore_ernie45_moe.state import Ernie45MoeStateAdapter

from erniecore.api.model import TensorMap
from erniecore_ernie5.architecture import Ernie5Architecture


class Ernie5StateAdapter(Ernie45MoeStateAdapter):
    """Maps of the text model, and those of what brings images and audio in and out."""

    def __init__(self, arch: Ernie5Architecture) -> None:
        super().__init__(arch)
        self.media = arch

    def outside(self, rules: Rules, names: Sequence[str]) -> Iterator[TensorMap]:
        """Embedding, final norm and head; then what text does not pass."""
        yield from super().outside(rules, names)
        for one in (*self._image(rules), *self._audio(rules)):
            yield replace(one, active_share=0.0)

    def _image(self, rules: Rules) -> Iterator[TensorMap]:
        width, hidden = self.media.image.width, self.media.hidden_size
        yield from rules.linear("image.embed", width, hidden, True)
        yield rules.same("image.scales.embedding", (len(self.media.image.scales) + 1, hidden))
        yield from rules.linear("image.head", hidden, width, True)

    def _audio(self, rules: Rules) -> Iterator[TensorMap]:
        count, hidden, levels = self.media.audio.num_codes, self.media.hidden_size, self.media.audio.levels
        for level in range(levels):
            yield rules.same(f"audio.embed.{level}.embedding", (count, hidden))
            if level < levels - 1:
                yield rules.same(f"audio.enter.{level}.embedding", (count, hidden))
            yield from rules.linear(f"audio.heads.{level}", hidden, count + (not level), True)
