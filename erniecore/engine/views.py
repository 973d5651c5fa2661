"""Whether an opened device writes through views. The operators accumulate into slices of larger tensors; a device whose
kernels hand back new memory instead would compute wrong gradients without a word. Nothing here repairs that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from erniecore.errors import EnvironmentFault

#: what the operators do to a part of a tensor, and what becomes of two rows of ones
WRITES: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "add_": (lambda part, ones: part.add_(ones), 2.0),
    "multiply_": (lambda part, ones: part.multiply_(ones + ones), 2.0),
    "scale_": (lambda part, ones: part.scale_(3.0), 3.0),
    "softmax_": (lambda part, ones: _functional().softmax_(part), 0.5),
    "matmul(out=)": (lambda part, ones: _paddle().matmul(ones, ones, out=part), 2.0),
    "adamw_": (lambda part, ones: _adamw(part, ones), 0.5),
}


def check_views(device: str) -> None:
    """Write into views as the operators do, on the current device.

    Raises:
        EnvironmentFault: the tensor behind a view kept its old values; names the operations.
    """
    paddle = _paddle()
    lost = []
    with paddle.no_grad():
        for name, (write, expected) in WRITES.items():
            whole = paddle.ones([4, 2])
            write(whole[1:3], paddle.ones([2, 2]))
            if whole.numpy()[1:3].tolist() != [[expected] * 2] * 2:
                lost.append(name)
    if lost:
        raise EnvironmentFault(
            f"device {device}: what is written into a view does not reach the tensor behind it",
            found=", ".join(lost),
            fix="unset FLAGS_use_stride_kernel; if that is not it, this paddle has no kernels of its own for these",
            code="ERN-E023",
        )


def _adamw(part: Any, ones: Any) -> None:
    """One step at rate 0.5 without momentum, as the optimizer makes it: 1 - 0.5 * sign."""
    paddle = _paddle()
    one, zero = paddle.to_tensor([1.0]), paddle.to_tensor([0.0])
    paddle._C_ops.adamw_(
        part, ones, one * 0.5, paddle.zeros_like(part), paddle.zeros_like(part), None, zero, zero, None, None,
        0.0, 0.0, 0.0, 1.0, 0.0, False, False, 1000, False, True, False,
    )  # fmt: skip


def _paddle() -> Any:
    import paddle

    return paddle


def _functional() -> Any:
    from paddle.nn import functional

    return functional
