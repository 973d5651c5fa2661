"""Kernels of the operator `rope`; README.md describes them."""
