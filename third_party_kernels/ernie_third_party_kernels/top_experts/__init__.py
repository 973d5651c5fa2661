"""Kernels of the operator `top_experts`; README.md describes them."""
