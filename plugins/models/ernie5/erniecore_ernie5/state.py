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
from erniecore_ernie5.image_tokens import CHANNELS, MERGED


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
        if self.media.read_layers:
            yield from self._reading(rules)

    def _reading(self, rules: Rules) -> Iterator[TensorMap]:
        image, hidden = self.media.image, self.media.hidden_size
        values = (image.patch // MERGED) ** 2
        yield rules.same("image.read.places", ((MERGED * image.grid) ** 2, hidden))
        sizes = {"embed": values * CHANNELS, "near": 9 * CHANNELS, "far": values * (hidden // 2), "join": 2 * hidden}
        for name, num_in in sizes.items():
            yield from rules.linear(f"image.read.{name}", num_in, hidden // 2 if name == "near" else hidden, True)
        yield from rules.linear("image.read.score", hidden, 1, False)
        yield rules.same("image.read.norm.weight", (hidden,))
        for block in (f"image.read.blocks.{number}." for number in range(self.media.read_layers)):
            for norm in ("norm1", "norm2"):
                yield rules.same(f"{block}{norm}.weight", (hidden,))
            for name, num_in, num_out in (("qkv", 1, 3), ("proj", 1, 1), ("fc1", 1, 4), ("fc2", 4, 1)):
                yield from rules.linear(f"{block}{name}", num_in * hidden, num_out * hidden, True)

    def _audio(self, rules: Rules) -> Iterator[TensorMap]:
        count, hidden, levels = self.media.audio.num_codes, self.media.hidden_size, self.media.audio.levels
        for level in range(levels):
            yield rules.same(f"audio.embed.{level}.embedding", (count, hidden))
            if level < levels - 1:
                yield rules.same(f"audio.enter.{level}.embedding", (count, hidden))
            yield from rules.linear(f"audio.heads.{level}", hidden, count + (not level), True)
