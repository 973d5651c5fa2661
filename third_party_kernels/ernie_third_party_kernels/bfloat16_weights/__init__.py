"""Kernels of the operator `bfloat16_weights`; README.md describes them."""
