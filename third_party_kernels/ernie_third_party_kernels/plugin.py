"""The plugin objects: the kernel sets of this package as erniecore finds them. The one module that imports erniecore."""

from __future__ import annotations

from ernie_third_party_kernels import kernel_set, triton_set
from erniecore.api.kernels import KernelSet


class NativeKernels(kernel_set.NativeSet, KernelSet):
    """C++ for the CPU."""

    name = "native"
    summary = "C++ kernels for x86-64 CPUs, with AVX2 or AVX-512 where they are there"


class TritonKernels(triton_set.TritonSet, KernelSet):
    """Triton for CUDA devices."""

    name = "triton"
    summary = "Triton kernels for CUDA devices, checked in the interpreter"


native, triton = NativeKernels(), TritonKernels()
