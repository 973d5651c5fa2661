"""Kernels of the operator `random_values`; README.md describes them."""
