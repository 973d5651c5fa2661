"""What erniecore sees of this package: which operators it has kernels for, whether they can run here, and the kernels.
Light: the modules that know paddle are imported by :meth:`NativeSet.load` alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ernie_third_party_kernels import library


class NativeSet:
    """The members of ``erniecore.api.kernels.KernelSet``."""

    devices = frozenset({"cpu"})
    on_request = ""
    #: operator -> dtypes of floating-point arguments
    operators: Mapping[str, tuple[str, ...]] = {
        "adamw": ("float32",),
        "attention": ("float32",),
        "bfloat16_weights": ("float32",),
        "bias": ("float32",),
        "cross_entropy": ("float32",),
        "decode_attention": ("float32",),
        "decode_experts": ("float32",),
        "decoder_step": ("float32",),
        "embedding": ("float32",),
        "fp8_quantize": ("float32",),
        "gelu": ("float32",),
        "grouped_linear": ("float32",),
        "grouped_swiglu": ("float32",),
        "hadamard": ("float32",),
        "layer_norm": ("float32",),
        "matmul": ("float32",),
        "packed_weights": ("float32",),
        "quantizing": ("float32", "bfloat16"),
        "random_values": ("float32", "bfloat16", "float16"),
        "rms_norm": ("float32",),
        "rope": ("float32",),
        "softmax": ("float32",),
        "swiglu": ("float32",),
        "top_experts": ("float32",),
    }

    def fault(self) -> str:
        """Why nothing can run; empty if it can."""
        reason = library.fault()
        return f"{reason}; with a compiler, install ernie-third-party-kernels again" if reason else ""

    def load(self, operator: str, threads: Callable[[], int], isa: str = "") -> Mapping[str, Any]:
        """Functions of ``operator`` by name; needs paddle.

        Args:
            threads: how many threads a call from the current thread may use.
            isa: one of ``library.LIBRARIES``; by default the best.
        """
        binding = importlib.import_module(f"ernie_third_party_kernels.{operator}.binding")
        paddle = importlib.import_module("paddle")
        openmp = Path(str(paddle.__file__)).parent / "libs" / "libiomp5.so"
        compiled = library.load(isa, str(openmp) if openmp.is_file() else "")
        found: Mapping[str, Any] = binding.kernels(compiled, threads)
        return found


native = NativeSet()
