"""Kernels of the operator `decode_experts`; README.md describes them."""
