"""A kernel for one operator on the CPU: the Hadamard transform in numpy. The conformance kit checks itself with it, and the
reference page of `erniecore.api.kernels` shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from erniecore.api.kernels import Kernel, KernelSet


class Function(NamedTuple):
    """A kernel: ``supports`` says for which calls ``run`` replaces the reference operator."""

    run: Callable[..., Any]
    supports: Callable[..., bool]


class ToyKernels(KernelSet):
    """Chosen with ``device.kernels.hadamard=toy``, or where it is the only set with this operator."""

    name = "toy"
    summary = "the Hadamard transform in numpy, for the conformance kit"
    devices = frozenset({"cpu"})
    operators = {"hadamard": ("float32",)}

    def load(self, operator: str, threads: Callable[[], int]) -> Mapping[str, Kernel]:
        return {"hadamard": Function(transform, supports)}


def supports(x: Any, block: int) -> bool:
    """Whether the kernel can compute it; others run the reference, which also refuses what is wrong."""
    return str(x.dtype).endswith("float32") and block > 1 and not block & (block - 1) and not x.shape[-1] % block


def transform(x: Any, block: int) -> Any:
    """The Hadamard transform, as ``erniecore_ops.hadamard``."""
    import numpy as np
    import paddle

    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return paddle.to_tensor((x.numpy().reshape(-1, block) @ matrix).reshape(x.shape))


plugin = ToyKernels()
