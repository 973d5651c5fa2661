"""Sizes of the two stored forms, from shapes alone: the plan asks here before paddle is imported."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from erniecore_weight_only.schemes import Scheme

#: inputs of an output that share a scale
GROUP = 64
WORDS, CLUSTERS = "ccq-2.5", "ccq-2.06"
#: rows of stored codes per group
ROWS = {WORDS: 10, CLUSTERS: 16}


class CodeScheme(Scheme):
    """``ccq-2.5`` or ``ccq-2.06``; groups are of 64 inputs, and a last one that is not full takes as much as a full one."""

    __slots__ = ()

    def num_bytes(self, shape: Sequence[int]) -> int:
        """Bytes of codes and scales of a weight [.., in, out]."""
        *stack, inputs, outputs = shape
        groups = -(-inputs // GROUP)
        each = 20 * groups + 4 if self.quant_dtype == WORDS else 16 * groups + (groups + 1) // 2 + 12
        return prod(stack) * outputs * each
