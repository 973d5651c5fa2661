"""What stands beside a tensor of which a rank has a part: the operators ask it how to compute over all ranks. A strategy
binds it in ``ops.sharded_parameters``, ``ops.sharded_masks`` and ``ops.sharded_ids``; nothing is hung on the tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import paddle

    from erniecore.types.samples import Array

    Tensor: TypeAlias = paddle.Tensor


class ShardedParameter(Protocol):
    """Of a head's weight: its loss is computed with the parts that other ranks have."""

    def linear_cross_entropy(
        self, hidden: Tensor, weight: Tensor, labels: Tensor, *, transposed: bool, bias: Tensor | None, chunk: int
    ) -> Tensor:
        """As ``ops.linear_cross_entropy`` over the full weight; the same on every rank."""
        ...


@runtime_checkable
class ShardedVocabulary(Protocol):
    """Of a head's weight, where whole logits are wanted and this rank has some of the vocabulary, or no head at all."""

    def logits(self, hidden: Tensor, weight: Tensor, *, transposed: bool, bias: Tensor | None) -> Tensor:
        """hidden [n, H] -> [n, V] over the whole vocabulary, the same on every rank that has a part of it."""
        ...


class ShardedMask(Protocol):
    """Of row indices: this rank has some of the queries, and its attention needs the keys of all ranks."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None) -> Tensor:
        """As ``ops.attention`` of the queries here to the keys of the whole sequence."""
        ...


class ShardedIds(Protocol):
    """Of token ids: this rank has some of the positions.

    Attributes:
        ids: those of the whole sequences [B, S], padded so that all ranks can share them.
        num_ranks, rank: ranks that have other positions of these sequences, and the place of this one.
    """

    ids: Array
    num_ranks: int
    rank: int

    def own(self, values: Array) -> Array:
        """Of values [B, S], also of sequences without the padding, those at the positions here; 0 at padding."""
        ...

    def inner(self, values: Array) -> Array:
        """Of :meth:`own` those whose hidden states are here between two matrices: fewer with sequence parallelism."""
        ...

    def gathered(self, x: Tensor) -> Tensor:
        """Rows [n, H], as many on every rank, one rank after the other: [n * num_ranks, H]; gradients are summed."""
        ...

    def shifted(self, steps: int) -> Tensor:
        """As ``ops.shifted`` of the whole sequence, at the positions here."""
        ...
