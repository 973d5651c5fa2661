"""Kernels of the operator `swiglu`; README.md describes them."""
