"""Kernels of the operator `fp8_quantize`; README.md describes them."""
