"""The codes of the next frame, level by level, on the way through the top layers: depth-wise autoregression without a transformer
of its own. Level l of L is read above layer N - L + l (from 0); its code then enters the hidden states before the next layer, so
that the codes of a level depend on those of the levels before, and on no later ones.

Letters: B batch, S positions, H hidden, L levels, N layers.
"""

from __future__ import annotations

from collections.abc import Callable

from paddle import Tensor, nn  # noqa: TID253

from erniecore_ernie5.layers import Embedded

#: (level, hidden states [B, S, H] above its layer) -> codes int64 [B, S] counted from 1, 0 where there is none
Choose = Callable[[int, Tensor], Tensor]


class DepthPass:
    """One pass: what stands above the layer of each level.

    Args:
        enter: embeddings by which the codes of each level but the last enter. num_layers: of the decoder.
        choose: the codes of a level: those that are given, or those that are found.

    Attributes:
        hidden: [B, S, H] of each level, before the final norm.
    """

    def __init__(self, enter: nn.LayerList, num_layers: int, choose: Choose) -> None:
        self.enter, self.first, self.choose = enter, num_layers - len(enter) - 1, choose
        self.hidden: list[Tensor] = []

    def step(self, place: int, x_BSH: Tensor) -> Tensor:
        """What the layer above ``place`` gets."""
        level = place - self.first
        if level < 0:
            return x_BSH
        self.hidden.append(x_BSH)
        if level == len(self.enter):
            return x_BSH
        enter: Embedded = self.enter[level]
        return x_BSH + enter(self.choose(level, x_BSH))
