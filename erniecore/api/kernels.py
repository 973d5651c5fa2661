"""What a set of kernels is written with: implementations of operators for a device. No paddle."""

from erniecore_ops.kernels import Kernel

from erniecore.kernels import OPERATORS, REFERENCE
from erniecore.plugin import KernelSet

__all__ = [
    "Kernel",
    "KernelSet",
    "OPERATORS",
    "REFERENCE",
]
