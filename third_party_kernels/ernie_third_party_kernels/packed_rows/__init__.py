"""Kernels of many rows for the operator `packed_weights`; README.md describes them."""
