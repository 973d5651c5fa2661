"""For kernel plugins: implementations of operators for a device. Imports no Paddle."""

from erniecore_ops.kernels import Kernel

from erniecore.kernels import OPERATORS, REFERENCE
from erniecore.plugin import KernelSet

__all__ = [
    "Kernel",
    "KernelSet",
    "OPERATORS",
    "REFERENCE",
]
