"""What the bindings share on Paddle's side: checks and thread counts. Imported once paddle is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
