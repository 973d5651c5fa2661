"""Kernels of the operator `embedding`; README.md describes them."""
