"""Kernels of the operator `adamw`; README.md describes them."""
