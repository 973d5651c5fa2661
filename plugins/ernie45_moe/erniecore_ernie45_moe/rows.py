"""What statistics of a router see of the rows: all positions are here. A parallel strategy whose ranks share the positions
of a row sets an object with these methods as ``rows`` of every block."""

from __future__ import annotations

from paddle import Tensor  # noqa: TID253


class WholeRows:
    """Every position of every row."""

    def own(self, values_BS: Tensor) -> Tensor:
        """What belongs to the positions that this block computes."""
        return values_BS

    def joined(self, values_BSn: Tensor) -> Tensor:
        """[B, positions here, n] -> [B, S, n], in the order of the row."""
        return values_BSn

    def common(self, loss: Tensor) -> Tensor:
        """A loss of weights alone, which every rank computes alike."""
        return loss
