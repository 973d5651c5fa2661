"""A kernel for one operator on the CPU: the Hadamard transform in numpy."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from erniecore.api.kernels import Kernel, KernelSet


class Function(NamedTuple):
    """A kernel: ``supports`` says for which calls ``run`` replaces the reference operator."""

    run: Callable[..., Any]
    supports: Callable[..., bool]


def supports(x: Any, block: int) -> bool:
    return block > 1 and block & (block - 1) == 0 and x.shape[-1] % block == 0 and "float32" in str(x.dtype)


def transform(x: Any, block: int) -> Any:
    import numpy as np
    import paddle

    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return paddle.to_tensor((x.numpy().reshape(-1, block) @ matrix).reshape(x.shape))


class NumpyKernels(KernelSet):
    """Chosen with ``device.kernels.hadamard=numpy-hadamard``, or where it is the only set with this operator."""

    name, summary = "numpy-hadamard", "the Hadamard transform in numpy"
    devices = frozenset({"cpu"})
    operators = {"hadamard": ("float32",)}

    def load(self, operator: str, threads: Callable[[], int]) -> Mapping[str, Kernel]:
        return {"hadamard": Function(transform, supports)}


plugin = NumpyKernels()
