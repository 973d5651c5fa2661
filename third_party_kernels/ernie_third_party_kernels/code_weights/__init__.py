"""Kernels of the operator `code_weights`; README.md describes them."""
