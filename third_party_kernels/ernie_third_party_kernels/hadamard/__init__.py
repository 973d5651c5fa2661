"""Kernels of the operator `hadamard`; README.md describes them."""
