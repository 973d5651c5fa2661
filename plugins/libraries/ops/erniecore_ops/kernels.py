"""Which implementation of an operator runs: the function of this package, or the kernel that stands in for it. Imports no paddle.

The core chooses the kernels when a device opens (``erniecore.kernels``); models go on calling the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

#: operator -> functions of erniecore_ops that an implementation may replace
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "adamw": ("adamw_", "square_sum"),
    "attention": (
        *("attention_forward", "attention_backward"),
        *("patch_attention_forward", "patch_attention_backward"),
    ),
    "bfloat16_weights": ("bfloat16_matmul", "bfloat16_grouped_matmul"),
    "bias": ("add_bias_", "sum_rows"),
    "cross_entropy": ("cross_entropy_rows_", "add_matmul_"),
    "decode_attention": ("decode_attention",),
    "decode_experts": ("decode_experts",),
    "decoder_step": ("decoder_step",),
    "embedding": ("embedding_backward",),
    "fp8_quantize": ("fp8_quantize",),
    "gelu": ("gelu_forward", "gelu_backward"),
    "grouped_linear": ("grouped_weight_gradient",),
    "grouped_swiglu": ("grouped_swiglu_forward", "grouped_swiglu_backward"),
    "hadamard": ("hadamard",),
    "layer_norm": ("layer_norm_forward", "layer_norm_backward"),
    "matmul": ("parts_matmul",),
    "packed_weights": (
        "dequantize",
        "quantized_matmul",
        "quantized_matmul_backward",
        "quantized_grouped_matmul",
        "quantized_grouped_matmul_backward",
    ),
    "quantizing": ("quantize_matrix",),
    "random_values": ("draw_values",),
    "rms_norm": ("rms_norm_forward", "rms_norm_backward"),
    "rope": ("rotate",),
    "softmax": ("softmax_rows_",),
    "swiglu": ("swiglu_forward", "swiglu_backward"),
    "top_experts": ("top_experts",),
}

P = ParamSpec("P")
R = TypeVar("R")


class Kernel(Protocol):
    """``run`` replaces a function of this package, with its signature, where ``supports`` says yes to the same arguments."""

    @property
    def run(self) -> Callable[..., Any]: ...
    @property
    def supports(self) -> Callable[..., bool]: ...


_in_use: dict[str, Kernel] = {}


def replaceable(function: Callable[P, R]) -> Callable[P, R]:
    """A function of this package that the kernel in use stands in for where it supports the arguments."""
    name = function.__name__
    if not any(name in functions for functions in OPERATORS.values()):
        raise ValueError(f"{name} belongs to no operator")

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        kernel = _in_use.get(name)
        if kernel is None or not kernel.supports(*args, **kwargs):
            return function(*args, **kwargs)
        result: R = kernel.run(*args, **kwargs)
        return result

    return call


def kernel_for(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Kernel | None:
    """The kernel that would stand in for a function of this package with these arguments; None if none would."""
    kernel = _in_use.get(function.__name__)
    return kernel if kernel is not None and kernel.supports(*args, **kwargs) else None


def put_in_use(kernels: Mapping[str, Kernel]) -> None:
    """From here on these kernels, by the name of their function, stand in; all others run the functions of this package."""
    _in_use.clear()
    _in_use.update(kernels)


def in_use() -> frozenset[str]:
    """Functions that a kernel stands in for."""
    return frozenset(_in_use)
