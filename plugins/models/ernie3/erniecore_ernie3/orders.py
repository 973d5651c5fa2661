"""Orders of the segments of a paragraph as classes of sentence reordering. Pure functions.

A paragraph of n <= m segments that were shuffled is one of k = 1! + 2! + ... + m! classes (ERNIE 3.0, arXiv:2107.02137, §3.2.2):
first all orders of one segment, then those of two, each block in lexicographic order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import factorial


def num_orders(max_segments: int) -> int:
    """k for at most ``max_segments`` segments: 9 for three."""
    return sum(factorial(n) for n in range(1, max_segments + 1))


def order_class(order: Sequence[int]) -> int:
    """The class of ``order``, in which place i holds original segment ``order[i]``; raises ``ValueError`` for no permutation."""
    count = len(order)
    if sorted(order) != list(range(count)) or not count:
        raise ValueError(f"not an order of {count} segments: {list(order)}")
    rank = sum(
        factorial(count - 1 - place) * sum(later < segment for later in order[place + 1 :])
        for place, segment in enumerate(order)
    )
    return num_orders(count - 1) + rank


def order_of(index: int, max_segments: int) -> tuple[int, ...]:
    """The order of a class, the way back of :func:`order_class`; raises ``ValueError`` for a class that there is not."""
    if not 0 <= index < num_orders(max_segments):
        raise ValueError(f"class {index} of {num_orders(max_segments)}")
    count = next(n for n in range(1, max_segments + 1) if index < num_orders(n))
    return list(permutations(range(count)))[index - num_orders(count - 1)]
