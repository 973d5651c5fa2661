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
    """The members of ``erniecore.api.kernels.KernelSet``."""

    devices = frozenset({"cuda"})
    on_request = "compiled and checked in the interpreter, not run on a GPU"
    operators: Mapping[str, tuple[str, ...]] = dict.fromkeys(
        ("attention", "cross_entropy", "layer_norm", "rms_norm", "swiglu", "packed_weights"), _FLOATS
    )

    def fault(self) -> str:
        """Why nothing can run; empty if it can."""
        if find_spec("triton") is None:
            return "triton is not installed; pip install 'triton>=3.4,<4'"
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


def _layer_norm(module: Any) -> dict[str, Kernel]:
    def forward(x: Any, weight: Any, bias: Any, epsilon: float) -> tuple[Any, Any, Any]:
        y, mean, inverse = module.forward(x.reshape([-1, x.shape[-1]]), weight, bias, epsilon)
        return y.reshape(x.shape), mean, inverse

    def supports(x: Any, weight: Any, bias: Any, epsilon: float) -> bool:
        return _plain(x, weight, bias) and weight.shape == bias.shape == x.shape[-1:]

    return {"layer_norm_forward": Kernel(forward, supports)}


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


def _attention(module: Any) -> dict[str, Kernel]:
    def columns(ends: Any) -> Any:
        return None if ends is None else ends.reshape([ends.shape[0], -1])

    def forward(q: Any, k: Any, v: Any, ends: Any, mask: Any, scale: float, parts: int = 3) -> tuple[Any, Any]:
        y, lse = module.forward(q, k, v, columns(ends), scale)
        return y, lse

    def backward(
        q: Any, k: Any, v: Any, y: Any, lse: Any, dy: Any, ends: Any, mask: Any, scale: float, parts: int = 3
    ) -> Any:
        return module.backward(q, k, v, y, lse, dy, columns(ends), scale)

    def can_forward(q: Any, k: Any, v: Any, ends: Any, mask: Any, scale: float, parts: int = 3) -> bool:
        (B, _, heads, d), (_, K, shared, _) = q.shape, k.shape
        fits = k.shape == v.shape == [B, K, shared, d] and heads % shared == 0 and d <= 256 and q.dtype == k.dtype
        rows = ends is None or (ends.shape == [B, 1, K, 1] and _name(ends) == "int32")
        return mask is None and fits and rows and _plain(q, k, v)

    def can_backward(
        q: Any, k: Any, v: Any, y: Any, lse: Any, dy: Any, ends: Any, mask: Any, scale: float, parts: int = 3
    ) -> bool:
        same = lse is not None and y.shape == dy.shape == q.shape and _plain(y, dy)
        return same and can_forward(q, k, v, ends, mask, scale)

    return {"attention_forward": Kernel(forward, can_forward), "attention_backward": Kernel(backward, can_backward)}


def _cross_entropy(module: Any) -> dict[str, Kernel]:
    def rows(logits: Any, piece: Any, again: Any, slopes: bool) -> Any:
        loss, lse = module.forward(logits, piece.labels)
        if slopes:
            module.backward_(logits, piece.labels, lse, lse * 0 + 1)
        return loss

    def supports(logits: Any, piece: Any, again: Any, slopes: bool) -> bool:
        return logits.ndim == 2 and piece.labels.shape == logits.shape[:1] and _plain(logits)

    return {"cross_entropy_rows_": Kernel(rows, supports)}


def _packed_weights(module: Any) -> dict[str, Kernel]:
    def product(x: Any, weight: Any) -> Any:
        return module.matmul(x, weight.qweight, weight.scales, weight.quant_dtype, weight.group, weight.outputs)

    def supports(x: Any, weight: Any) -> bool:
        group, known = weight.group, weight.quant_dtype in ("int8", "int4", "nf4")
        fits = known and (group == 0 or (group >= 16 and group & (group - 1) == 0))
        return fits and weight.qweight.ndim == 2 and x.ndim == 2 and _plain(x, weight.scales)

    return {"quantized_matmul": Kernel(product, supports)}


_FUNCTIONS = {
    "attention": _attention,
    "cross_entropy": _cross_entropy,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "swiglu": _swiglu,
    "packed_weights": _packed_weights,
}


def _name(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def _plain(*tensors: Any) -> bool:
    names = [_name(x) for x in tensors]
    return all(x.is_contiguous() and x.place.is_gpu_place() for x in tensors) and set(names) <= set(_FLOATS)


kernels = TritonSet()
