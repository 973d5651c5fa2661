"""Kernels of the operator `quantizing`; README.md describes them."""
