"""Matrix products of the library that came with Paddle, for what Paddle's own calls cannot say: adding to a result."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import paddle  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, NUMBER, POINTER

ROW_MAJOR, PLAIN, TURNED = 101, 111, 112


@lru_cache(maxsize=1)
def sgemm() -> Callable[..., None] | None:
    """``cblas_sgemm`` of MKL, with as many threads as Paddle's products use; None where Paddle came without."""
    try:
        found = ctypes.CDLL(str(Path(str(paddle.__file__)).parent / "libs" / "libmklml_intel.so")).cblas_sgemm
    except (OSError, AttributeError):
        return None
    sizes, operand = (COUNT,) * 6, (POINTER, COUNT)
    found.argtypes = [*sizes, NUMBER, *operand, *operand, NUMBER, *operand]
    found.restype = None
    return found
