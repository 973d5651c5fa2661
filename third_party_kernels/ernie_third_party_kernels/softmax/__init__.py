"""Kernels of the operator `softmax`; README.md describes them."""
