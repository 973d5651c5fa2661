"""Kernels of the operator `attention`; README.md describes them."""
