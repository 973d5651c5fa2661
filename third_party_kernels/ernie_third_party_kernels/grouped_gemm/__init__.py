"""Kernels of the operator `grouped_gemm`; README.md describes them."""
