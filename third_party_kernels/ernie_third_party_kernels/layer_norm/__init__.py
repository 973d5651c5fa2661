"""Kernels of the operator `layer_norm`; README.md describes them."""
