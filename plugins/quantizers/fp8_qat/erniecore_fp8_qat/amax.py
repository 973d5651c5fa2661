"""Scales of weights and inputs of which ranks have parts: the largest value of the whole is the largest of the parts', so a
layer rounds as it would on one process. Which ranks those are, a parallel strategy says. No rounding here.

Letters: N rows, I inputs, O outputs, S groups of rows, each the batch of one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api.experts import SequenceShard, WholeSequences
from erniecore.api.quantizer import RankGroup

#: the largest values of a part -> those of the whole
ReduceAmax = Callable[[Tensor], Tensor]


class SourcedRows(NamedTuple):
    """Rows that came from several ranks: ``source`` int64 [N], whose batch each is of, and how many there are."""

    source: Tensor
    sources: int


class AmaxReduction:
    """What a layer whose weight is cut asks. One for all copies of the layer.

    Attributes:
        weights: of the ranks' parts of the weight; ``None``: it is whole here, as each expert is.
        inputs: of their parts of the inputs; ``None``: all have the same.
        positions: of their positions of the same sequences.
    """

    def __init__(self, *, weights: RankGroup | None = None, inputs: RankGroup | None = None) -> None:
        self.weights, self.inputs = weights, inputs
        self.positions: SequenceShard = WholeSequences()

    def __deepcopy__(self, memo: dict[int, object]) -> AmaxReduction:
        return self

    def of_weight(self, largest: Tensor) -> Tensor:
        """The largest value of the whole weight."""
        return largest if self.weights is None else self.weights.all_max(largest.clone())

    def of_inputs(self, transformed: Tensor, rows: SourcedRows | None) -> Tensor:
        """The largest value of the whole inputs [N, I]: [1], or where ``rows`` have sources one of each, [S]."""
        each = transformed.abs().max(axis=1) if transformed.size else paddle.zeros([0])
        if rows is None:
            largest = each.max().reshape([1]) if transformed.size else paddle.zeros([1])
        else:
            sources = paddle.arange(rows.sources).unsqueeze(1)
            masked = paddle.where(rows.source == sources, each, paddle.zeros_like(each))
            largest = masked.max(axis=1) if transformed.size else paddle.zeros([rows.sources])
        return self.positions.largest(largest if self.inputs is None else self.inputs.all_max(largest.clone()))
