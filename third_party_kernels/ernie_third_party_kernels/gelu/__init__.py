"""Kernels of the operator `gelu`; README.md describes them."""
