"""Kernels of the operator `bias`; README.md describes them."""
