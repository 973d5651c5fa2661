"""Kernels of the operator `decode_attention`; README.md describes them."""
