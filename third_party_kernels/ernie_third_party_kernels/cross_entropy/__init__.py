"""Kernels of the operator `cross_entropy`; README.md describes them."""
