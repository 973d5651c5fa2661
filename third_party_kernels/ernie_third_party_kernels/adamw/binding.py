"""AdamW and the sum of squares over many of Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import CDLL, byref, c_float, c_int64, c_void_p
from math import nan, sqrt
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, NUMBER, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team

#: what the kernel returns where it could not begin
_NO_MEMORY = 1
_MOMENTS = (paddle.float32, paddle.bfloat16)


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``adamw_`` and ``square_sum`` of ``erniecore_ops``."""
    update_ = function(library, "adamw", [POINTER] * 7 + [SIZE, COUNT] + [NUMBER] * 4 + [COUNT], COUNT)
    square_sum_ = function(library, "square_sum", [POINTER, POINTER, SIZE, POINTER, COUNT], COUNT)

    def adamw_(
        targets: Sequence[Tensor],
        gradients: Sequence[Tensor],
        firsts: Sequence[Tensor],
        seconds: Sequence[Tensor],
        rates: Sequence[float],
        decays: Sequence[float],
        terms: Any,
    ) -> Tensor:
        count, root = len(targets), sqrt(1.0 - terms.power2)
        pointers = [(c_void_p * count)(*(x.data_ptr() for x in xs)) for xs in (targets, gradients, firsts, seconds)]
        sizes = (c_int64 * count)(*(int(x.size) for x in targets))
        steps = (c_float * count)(*(rate * root / (1.0 - terms.power1) for rate in rates))
        lost = (c_float * count)(*(rate * decay for rate, decay in zip(rates, decays, strict=True)))
        half = int(firsts[0].dtype == paddle.bfloat16)
        numbers = terms.beta1, terms.beta2, terms.epsilon * root, terms.scale
        found = update_(*pointers, sizes, steps, lost, count, half, *numbers, team(threads, sum(sizes)))
        if found == _NO_MEMORY:
            raise MemoryError(f"no memory for the pieces of {count} tensors")
        return paddle.to_tensor(0.0 if not found else nan, "float32")

    def square_sum(tensors: Sequence[Tensor]) -> Tensor:
        count, total = len(tensors), c_float()
        pointers = (c_void_p * count)(*(x.data_ptr() for x in tensors))
        sizes = (c_int64 * count)(*(int(x.size) for x in tensors))
        if square_sum_(pointers, sizes, count, byref(total), team(threads, sum(sizes))):
            raise MemoryError(f"no memory for the sums of {count} tensors")
        return paddle.to_tensor(total.value, "float32")

    def can_sum(tensors: Sequence[Tensor]) -> bool:
        return len(tensors) > 0 and plain(*tensors)

    return {"adamw_": Kernel(adamw_, _can_update), "square_sum": Kernel(square_sum, can_sum)}


def _can_update(
    targets: Sequence[Tensor],
    gradients: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    rates: Sequence[float],
    decays: Sequence[float],
    terms: Any,
) -> bool:
    """Whether all is contiguous float32, but for moments of one kind, and the sizes fit."""
    moments = [*firsts, *seconds]
    uniform = bool(moments) and moments[0].dtype in _MOMENTS and all(x.dtype == moments[0].dtype for x in moments)
    groups = zip(targets, gradients, firsts, seconds, strict=True)
    sizes = all(len({int(x.size) for x in group}) == 1 for group in groups)
    return uniform and sizes and all(x.is_contiguous() for x in moments) and plain(*targets, *gradients)
