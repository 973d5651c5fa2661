"""Kernels of the operator `packed_weights`; README.md describes them."""
