"""Kernels in Triton for CUDA devices, as erniecore sees them: taken only where the settings name them, as they were compiled
and checked in Triton's interpreter, but never run on a GPU. Importing this needs neither triton nor paddle.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

_FLOATS = ("float32", "bfloat16", "float16")


class Kernel(NamedTuple):
    """``run`` where ``supports`` says yes to the same arguments."""

    run: Callable[..., Any]
    supports: Callable[..., bool]


class TritonSet:
    """See ``erniecore.kernels.KernelSet``."""

    devices = frozenset({"cuda"})
    on_request = "compiled and checked in the interpreter, not run on a GPU"
    operators: Mapping[str, tuple[str, ...]] = {"rms_norm": _FLOATS, "swiglu": _FLOATS, "packed_weights": _FLOATS}

    def fault(self) -> str:
        """Why nothing can run; empty if it can."""
        if find_spec("triton") is None:
            return "triton is not installed; pip install 'ernie-third-party-kernels[gpu]'"
        return ""

    def load(self, operator: str, threads: Callable[[], int]) -> Mapping[str, Any]:
        """Functions of ``operator`` by name; what is missing runs the reference. Needs paddle and triton."""
        module = importlib.import_module(f"ernie_third_party_kernels.{operator}.triton")
        return _FUNCTIONS[operator](module)


def _rms_norm(module: Any) -> dict[str, Kernel]:
    def forward(x: Any, weight: Any, epsilon: float) -> tuple[Any, Any]:
        y, inverse = module.forward(x.reshape([-1, x.shape[-1]]), weight, epsilon)
        return y.reshape(x.shape), inverse

    def supports(x: Any, weight: Any, epsilon: float) -> bool:
        return _plain(x, weight) and weight.shape == x.shape[-1:]

    return {"rms_norm_forward": Kernel(forward, supports)}


def _swiglu(module: Any) -> dict[str, Kernel]:
    def rows(x: Any) -> Any:
        return x.reshape([-1, x.shape[-1]])

    def forward(gate: Any, up: Any, factor: Any = None) -> Any:
        return module.forward(rows(gate), rows(up)).reshape(gate.shape)

    def backward(gate: Any, up: Any, dy: Any) -> tuple[Any, Any]:
        d_gate, d_up = module.backward(rows(gate), rows(up), rows(dy))
        return d_gate.reshape(gate.shape), d_up.reshape(up.shape)

    def can_forward(gate: Any, up: Any, factor: Any = None) -> bool:
        return factor is None and gate.shape == up.shape and _plain(gate, up)

    def can_backward(gate: Any, up: Any, dy: Any) -> bool:
        return gate.shape == up.shape == dy.shape and _plain(gate, up, dy)

    return {"swiglu_forward": Kernel(forward, can_forward), "swiglu_backward": Kernel(backward, can_backward)}


def _packed_weights(module: Any) -> dict[str, Kernel]:
    def product(x: Any, weight: Any) -> Any:
        return module.product(x, weight.codes, weight.scales, weight.form, weight.group, weight.outputs)

    def supports(x: Any, weight: Any) -> bool:
        return weight.form in ("int8", "int4") and weight.codes.ndim == 2 and x.ndim == 2 and _plain(x, weight.scales)

    return {"packed_product": Kernel(product, supports)}


_FUNCTIONS = {"rms_norm": _rms_norm, "swiglu": _swiglu, "packed_weights": _packed_weights}


def _plain(*tensors: Any) -> bool:
    names = [str(x.dtype).rpartition(".")[2] for x in tensors]
    return all(x.is_contiguous() and x.place.is_gpu_place() for x in tensors) and set(names) <= set(_FLOATS)


kernels = TritonSet()
