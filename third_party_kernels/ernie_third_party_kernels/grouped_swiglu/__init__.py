"""Kernels of the operator `grouped_swiglu`; README.md describes them."""
