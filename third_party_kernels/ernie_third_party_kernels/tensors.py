"""What the bindings share on Paddle's side: checks and thread counts. Imported once paddle is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

#: A region of threads costs as much as passing over this many elements.
FEWEST_ELEMENTS = 1 << 15

Threads = Callable[[], int]


class Kernel(NamedTuple):
    """``run`` where ``supports`` says yes to the same arguments."""

    run: Callable[..., Any]
    supports: Callable[..., bool]


def plain(*tensors: Tensor | None) -> bool:
    """Whether all are float32 without gaps; ``None`` is."""
    return all(x is None or (x.dtype == paddle.float32 and x.is_contiguous()) for x in tensors)


def team(threads: Threads, elements: int) -> int:
    """Threads for so much work."""
    return threads() if elements >= FEWEST_ELEMENTS else 1


def pointer(x: Tensor | None) -> int:
    """Address of the first element; 0 for None."""
    return 0 if x is None else int(x.data_ptr())


def parts_of(parts: Sequence[Any]) -> tuple[Any, Any]:
    """Expert of each part of sorted rows, and the first row of each and the end, as int64 arrays; parts of one expert that
    follow each other are one."""
    kept = [
        part for part, after in zip(parts, [*parts[1:], None], strict=True) if not after or after.expert != part.expert
    ]
    experts = np.array([part.expert for part in kept], np.int64)
    return experts, np.array([0, *(part.rows.stop for part in kept)], np.int64)


def cover(parts: Sequence[Any], rows: int, experts: int) -> bool:
    """Whether ``parts`` are all ``rows`` in order, and all of them of experts that there are."""
    ends = [0, *(part.rows.stop for part in parts)]
    whole = all(part.rows.start == start for part, (start, _) in zip(parts, pairwise(ends), strict=True))
    return whole and ends[-1] == rows and all(0 <= part.expert < experts for part in parts)
