"""Kernels of the operator `grouped_linear`; README.md describes them."""
