"""Kernels of the operator `matmul`; README.md describes them."""
